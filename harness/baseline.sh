#!/bin/bash
# baseline.sh - make baseline: run upstream's tests on the base kernel, RUNS=2
# times, and write what they give to harness/baseline/ARCH.txt. `make check`
# compares with it: what fails there is not ours, what varies decides nothing.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"
no_args "$@"

export KERNEL=base CONFIG=test ARCH=${ARCH:-x86_64} TESTS=${TESTS:-$UPSTREAM_TESTS}
one_of ARCH x86_64 arm64
RUNS=${RUNS:-2}
[[ $RUNS =~ ^[1-9]$ ]] || die "RUNS=$RUNS: from 1 to 9"

report=$REPORT/base-$ARCH.ktap
runs=()
for ((i = 1; i <= RUNS; i++)); do
	rm -f "$report"
	say "run $i of $RUNS on the base kernel"
	"$HARNESS/kselftest.sh" || true
	[[ -s $report ]] || die "the run did not end with a report"
	# A test that the VM did not survive says nothing about the others.
	! grep -q '^not ok .* # not run:' "$report" || die "the run was cut off: $report"
	cp "$report" "$REPORT/baseline-$ARCH-$i.ktap"
	runs+=("$REPORT/baseline-$ARCH-$i.ktap")
done
mkdir -p "$HARNESS/baseline"
"$HARNESS/report.py" list "${runs[@]}" | put_file "$HARNESS/baseline/$ARCH.txt"
say "harness/baseline/$ARCH.txt: $(grep -vc '^#' "$HARNESS/baseline/$ARCH.txt") results, $(grep -c '^fail' "$HARNESS/baseline/$ARCH.txt" || true) of them failures"
