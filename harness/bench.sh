#!/bin/bash
# bench.sh - count what write faults after fork() cost: guest instructions of
# cow_bench in QEMU, in results/. ARCH=x86_64|arm64,
# BENCH_COLUMNS="base khugepaged patched always"
# with one column a kernel and its settings:
#
#	base		the base
#	khugepaged	the base with a khugepaged that never sleeps
#	patched		the series
#	always		the series, always copying blocks (debugfs cow/copy)
#
# BENCH_ARGS= goes to cow_bench (with the median of 9 rounds repeated runs agree to
# 0.1 %; of 3, a timer interrupt changed small rows by up to 2 %). RESULTS= is
# another directory than results/.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
export ARCH=${ARCH:-x86_64} CONFIG=bench RESULTS=${RESULTS:-$ROOT/results}
one_of ARCH x86_64 arm64
columns=${BENCH_COLUMNS:-base khugepaged patched always}

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
PROGRAM=cow_bench "$HARNESS/selftests.sh"
lock bench

tmp=$(mktemp -d "$BUILD/bench.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/files"
cp "$BUILD/$ARCH/kselftest-static/mm/cow_bench" "$tmp/files/"
for column in $columns; do
	out=$tmp/$column.json
	export KERNEL VM_ICOUNT=1 VM_TIMEOUT=3600
	KERNEL=$(kernel_of "$column")
	say "bench: $column"
	"$HARNESS/initvm.sh" "$tmp/files" sh -c "$(setup_of "$column") ./cow_bench -i -k $column ${BENCH_ARGS:--r 9} $(args_of "$column")" |
		tee "$tmp/$column.out"
	grep '^{' "$tmp/$column.out" >"$out" || die "cow_bench printed no record"
	jq -es 'all(.[]; has("mode") and has("size_kb") and has("pattern") and has("pages")
			and has("faults") and has("insns") and has("fault_max"))' "$out" >/dev/null ||
		die "a record of cow_bench is not as it should be: $out"
done

# What this run measured takes the place of the same columns; others stay.
mkdir -p "$RESULTS"
[[ -e $RESULTS/bench.json ]] || say '[]' >"$RESULTS/bench.json"
jq -cn --arg arch "$ARCH" --slurpfile old "$RESULTS/bench.json" '
	[inputs] as $new | ($new | map(.kernel) | unique) as $done
	| ($old[0] | map(select(.arch != $arch or (.kernel as $k | $done | index($k) | not)))) + $new | .[]' "$tmp"/*.json |
	sed -e '1s/^/[/; $!s/$/,/; $s/$/]/' | put_file "$RESULTS/bench.json"
"$HARNESS/bench-report.sh"
