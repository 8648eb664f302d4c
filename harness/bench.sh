#!/bin/bash
# bench.sh - count what write faults after fork(), and faults on files, cost: guest
# instructions of cow_bench and fault_around_bench in QEMU, in results/.
# ARCH=x86_64|arm64, BENCH_PROGRAMS="cow_bench fault_around_bench",
# BENCH_COLUMNS="base khugepaged patched always"
# with one column a kernel and its settings, for files the first and third only:
#
#	base		the base
#	khugepaged	the base with a khugepaged that never sleeps
#	patched		the series
#	always		the series, always copying blocks (debugfs cow/copy)
#
# BENCH_ARGS= goes to the programs (with the median of 9 rounds repeated runs agree to
# 0.1 %; of 3, a timer interrupt changed small rows by up to 2 %). RESULTS= is
# another directory than results/.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
export ARCH=${ARCH:-x86_64} CONFIG=bench RESULTS=${RESULTS:-$ROOT/results}
one_of ARCH x86_64 arm64
columns=${BENCH_COLUMNS:-base khugepaged patched always}
programs=${BENCH_PROGRAMS:-cow_bench fault_around_bench}

kernel_of() {
	case $1 in
	base | khugepaged) say base ;;
	patched | always) say patched ;;
	*) die "BENCH_COLUMNS: $1: unknown; choose from: base khugepaged patched always" ;;
	esac
}

# shellcheck disable=SC2016 # for the guest's shell
setup_of() {
	case $1 in
	khugepaged) say 'k=/sys/kernel/mm/transparent_hugepage/khugepaged; echo 0 >$k/scan_sleep_millisecs; echo 0 >$k/alloc_sleep_millisecs; echo 65536 >$k/pages_to_scan;' ;;
	always) say 'echo always >/sys/kernel/debug/cow/copy || exit;' ;;
	esac
}

# After the stores of a copy, khugepaged gets so many ms to mend what they left.
args_of() {
	[[ $1 != khugepaged ]] || say '-w 200'
}

for column in $columns; do
	kernel_of "$column" >/dev/null
done
"$HARNESS/deps.sh" source build bench
for kernel in base patched; do
	for column in $columns; do
		[[ $(kernel_of "$column") == "$kernel" ]] || continue
		KERNEL=$kernel "$HARNESS/kernel.sh"
		break
	done
done
for program in $programs; do
	[[ $program == cow_bench || $program == fault_around_bench ]] ||
		die "BENCH_PROGRAMS: $program: unknown; choose from: cow_bench fault_around_bench"
	PROGRAM=$program "$HARNESS/selftests.sh"
done
lock bench

tmp=$(mktemp -d "$BUILD/bench.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
for program in $programs; do
	mkdir "$tmp/$program"
	cp "$BUILD/$ARCH/kselftest-static/mm/$program" "$tmp/$program/"
done
if [[ -d $tmp/fault_around_bench ]]; then
	cp "$HARNESS/guest/fault_around_bench.sh" "$tmp/fault_around_bench/"
	truncate -s 64M "$tmp/fault_around_bench/ext4.img"
	PATH=$PATH:/usr/sbin run_logged mkfs-bench mkfs.ext4 -qF -b 4096 "$tmp/fault_around_bench/ext4.img"
fi

# command_of PROGRAM COLUMN: for the guest's shell.
command_of() {
	local args="-i -k $2 ${BENCH_ARGS:--r 9}"

	case $1 in
	cow_bench) say "$(setup_of "$2") ./cow_bench $args $(args_of "$2")" ;;
	fault_around_bench) say "sh ./fault_around_bench.sh $args" ;;
	esac
}

# measure PROGRAM COLUMN
measure() {
	local out=$tmp/$1-$2

	say "bench: $1: $2"
	KERNEL=$(kernel_of "$2") VM_ICOUNT=1 VM_TIMEOUT=3600 \
		"$HARNESS/initvm.sh" "$tmp/$1" sh -c "$(command_of "$1" "$2")" | tee "$out.out"
	grep '^{' "$out.out" >"$out.json" || die "$1 printed no record"
	jq -es 'all(.[]; has("mode") and has("size_kb") and has("pattern") and has("pages")
			and has("faults") and has("insns"))' "$out.json" >/dev/null ||
		die "a record of $1 is not as it should be: $out.json"
	[[ $1 == cow_bench ]] || jq -es 'map("\(.pattern) \(.size_kb)") as $have
			| all(("tmpfs 4", "tmpfs-huge 64", "ext4 4", "ext4 64"); . as $row | $have | index($row))' "$out.json" >/dev/null ||
		die "$1 did not get folios of the sizes that it is to measure; see its output above"
}

for column in $columns; do
	for program in $programs; do
		[[ $program == cow_bench || $column == "$(kernel_of "$column")" ]] || continue
		measure "$program" "$column"
	done
done

# What this run measured takes the place of the same columns and modes; others stay.
mkdir -p "$RESULTS"
[[ -e $RESULTS/bench.json ]] || say '[]' >"$RESULTS/bench.json"
jq -cn --arg arch "$ARCH" --slurpfile old "$RESULTS/bench.json" '
	def key: "\(.kernel) \(.mode)";
	[inputs] as $new | ($new | map(key) | unique) as $done
	| ($old[0] | map(select(.arch != $arch or (key as $k | $done | index($k) | not)))) + $new | .[]' "$tmp"/*.json |
	sed -e '1s/^/[/; $!s/$/,/; $s/$/]/' | put_file "$RESULTS/bench.json"
"$HARNESS/bench-report.sh"
