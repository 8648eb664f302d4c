#!/bin/bash
# small-folios.sh - make small-folios: what page faults on small folios cost, base
# against patched, in guest instructions: will-it-scale's page_fault tests, and write
# faults behind fork() and behind reads (guest/page_fault_bench.c).
#
# results/page-faults.md and .json have the rows. A row is a case of
# build/report/small-folios.ktap, and fails where patched takes more than 0.5 % more
# instructions. Each kernel is booted BOOTS=3 times, with ROUNDS=15. Six minutes, when
# the kernels (CONFIG=bench) are built.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

ROUNDS=${ROUNDS:-15} BOOTS=${BOOTS:-3}
for var in ROUNDS BOOTS; do
	[[ ${!var} =~ ^[1-9][0-9]?$ ]] || die "$var=${!var}: a number from 1 to 99 is wanted"
done
RESULTS=${RESULTS:-$ROOT/results}
LIMIT_PERCENT=0.5
export CONFIG=bench ARCH=x86_64

"$HARNESS/deps.sh" source build bench
for kernel in base patched; do
	KERNEL=$kernel "$HARNESS/kernel.sh"
done
lock small-folios
tmp=$(mktemp -d "$BUILD/small-folios.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/guest"
run_logged page_fault_bench gcc -O2 -Wall -Wextra -Werror -static -pthread \
	-o "$tmp/guest/page_fault_bench" "$HARNESS/guest/page_fault_bench.c"

measure() {
	KERNEL=$1 VM_ICOUNT=1 VM_TIMEOUT=1800 "$HARNESS/initvm.sh" "$tmp/guest" sh -c \
		"mkdir /run/files && mount -t tmpfs -o huge=never files /run/files && ./page_fault_bench $1 /run/files $ROUNDS" |
		tee "$tmp/out"
	grep '^{' "$tmp/out" >>"$tmp/all" || die "page_fault_bench printed no record"
}

for ((boot = 1; boot <= BOOTS; boot++)); do
	for kernel in base patched; do
		say "small-folios: $kernel, boot $boot of $BOOTS"
		measure "$kernel"
	done
done
# A boot as a whole can differ, in rows of one kind: the median counts.
for kernel in base patched; do
	jq -cs --arg kernel "$kernel" 'map(select(.kernel == $kernel))
		| group_by([.test, .phase, .tasks])[] | sort_by(.insns)[length / 2 | floor]' "$tmp/all" >"$tmp/$kernel.json"
done
[[ $(wc -l <"$tmp/base.json") == $(wc -l <"$tmp/patched.json") ]] ||
	die "base and patched have not the same rows; see the output above"

# One row a line: what, phase, tasks, base, patched, change in percent; what loses first.
rows() {
	jq -rs 'group_by([.test, .phase, .tasks])[]
		| (map({key: .kernel, value: .insns}) | from_entries) as $n
		| [.[0].test, .[0].phase, .[0].tasks, $n.base, $n.patched, 100 * ($n.patched / $n.base - 1)] | @tsv' \
		"$tmp"/{base,patched}.json | sort -t$'\t' -k6,6gr
}

sizes() {
	"$BUILD/linux/scripts/bloat-o-meter" "$BUILD"/x86_64/{base,patched}-bench/objects/vmlinux
}

mkdir -p "$RESULTS"
jq -cs 'sort_by([.test, .phase, .tasks, .kernel])[]' "$tmp"/{base,patched}.json |
	sed -e '1s/^/[/; $!s/$/,/; $s/$/]/' | put_file "$RESULTS/page-faults.json"
{
	cat <<-TEXT
	# Page faults on small folios

	    make small-folios

	counts the guest instructions of page faults on folios of 4K, on base and patched,
	with \`qemu -icount shift=0,sleep=off\` and one CPU. \`anon\`, \`private\` and \`shared\`
	are will-it-scale's page_fault1, 2 and 3: first stores to anonymous memory, and to
	private and shared mappings of a file (tmpfs); \`read\` is reads of a mapped file.
	\`wp-reuse\` and \`wp-copy\` are stores after fork(), with the child gone or alive;
	\`wp-private\` and \`wp-zero\` stores to what was read before. \`touch\` and \`unmap\`
	(munmap() behind that, one task after the other) are for 4096 pages and all tasks
	together, of $ROUNDS rounds: of \`touch\` the least, as a timer tick can only add to it, of
	\`unmap\` the median for each sixteenth of the memory. \`fault\` is the median of a single
	fault. Each row is the median of $BOOTS boots of each kernel. A row above $LIMIT_PERCENT %
	fails; what loses comes first.

	| test | phase | tasks | base | patched | change |
	|---|---|---|--:|--:|--:|
	TEXT
	rows | awk -F'\t' '{ printf "| %s | %s | %s | %d | %d | %+.2f %% |\n", $1, $2, $3, $4, $5, $6 }'
	cat <<-TEXT

	## Code size

	Bytes by scripts/bloat-o-meter, of these two kernels. Of the functions that a fault on a
	small folio goes through, those that are not listed did not change.

	| function | base | patched | change |
	|---|--:|--:|--:|
	TEXT
	sizes | awk '$1 ~ /^(do_wp_page|wp_page_copy|wp_page_reuse|__handle_mm_fault|handle_pte_fault|do_anonymous_page|do_fault|do_cow_fault|do_read_fault|finish_fault|filemap_map_pages|filemap_map_ptes|set_pte_range|do_swap_page|__zap_vma_range|zap_pte_range)(\.|$)/ {
		printf "| %s | %s | %s | %s |\n", $1, $2, $3, $4 }'
	sizes | awk '/^Total: / { sub(/Before=/, "", $2); sub(/After=/, "", $3); sub(/,/, "", $2); sub(/,/, "", $3)
		printf "| the whole kernel | %s | %s | %+d |\n", $2, $3, $3 - $2 }'
} | put_file "$RESULTS/page-faults.md"
rows | awk -F'\t' -v limit="$LIMIT_PERCENT" '
	BEGIN { print "TAP version 13" }
	{
		result = $6 > limit ? "not ok" : "ok"
		printf "# %d -> %d instructions, %+.2f %%\n", $4, $5, $6
		printf "%s %d %s %s, %s\n", result, ++n, $1, $2, $3
	}
	END { print "1.." n }' | put_file "$REPORT/small-folios.ktap"
grep -B1 '^not ok' "$REPORT/small-folios.ktap" || true
say "results: $RESULTS/page-faults.md"
"$HARNESS/report.py" count "$REPORT/small-folios.ktap"
