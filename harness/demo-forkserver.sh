#!/bin/bash
# demo-forkserver.sh - make demo-forkserver: what a server pays that forks FORKS=1000
# workers from a warmed heap (guest/forkserver.c), on base and patched, in guest
# instructions. Writes results/demo-forkserver.json and, by demo-report.sh, the tables.
#
# DEMO_COLUMNS=, NATIVE=1 and KVM=1: demo.sh. The last two measure time, not instructions.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"
# shellcheck source=harness/demo.sh
. "$HARNESS/demo.sh"
FORKS=${FORKS:-1000}
[[ $FORKS =~ ^[1-9][0-9]+$ ]] || die "FORKS=$FORKS: a number is wanted, 10 or more"

"$HARNESS/deps.sh" bench demo
demo_kernels
lock demo-forkserver
tmp=$(mktemp -d "$BUILD/demo.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/programs"
demo_build "$tmp/programs/forkserver" -static "$HARNESS/guest/forkserver.c"

# It would wake up in one row or another, and make some folios whole.
stop_khugepaged='echo 4000000000 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs || exit;'

measure() {
	local command=(./forkserver -k "$1" -n "$FORKS")
	if [[ ${NATIVE:-} ]]; then
		(cd "$tmp/programs" && "${command[@]}")
		return
	fi
	[[ ${KVM:-} ]] || command+=(-i)
	KERNEL=$(demo_kernel_of "$1") CONFIG=bench ARCH=x86_64 VM_TIMEOUT=7200 VM_ICOUNT=$([[ ${KVM:-} ]] || say 1) \
		"$HARNESS/initvm.sh" "$tmp/programs" sh -c "$stop_khugepaged $(demo_setup_of "$1") $(quoted "${command[@]}")"
}

rows=$("$tmp/programs/forkserver" -l | wc -l)
for column in $columns; do
	say "demo-forkserver: $column: $rows rows of $FORKS workers; 5 to 20 minutes where QEMU counts instructions"
	start=$SECONDS
	measure "$column" | tee "$tmp/out" | sed -un 's/.*"size_kb":\([0-9]*\),"end":"\([a-z]*\)","stores":"\([a-z]*\)","when":"\([a-z]*\)".*/  \1K \2 \3 \4/p'
	grep '^{' "$tmp/out" >"$tmp/$column.json" || true
	(($(wc -l <"$tmp/$column.json") == rows)) || die "forkserver printed less than $rows records: $(tail -n 3 "$tmp/out")"
	say "demo-forkserver: $column: done in $(elapsed $((SECONDS - start)))"
done
cat "$tmp"/*.json | demo_merge demo-forkserver
RESULTS=$results "$HARNESS/demo-report.sh"
