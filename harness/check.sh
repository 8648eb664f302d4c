#!/bin/bash
# check.sh - make check: everything that decides whether the series are fit to
# be sent. A part that fails does not stop the next ones; one that cannot run is
# a failure. build/report/summary.md has it all, junit.xml is for CI.
#
# What fails on the base kernel too (harness/baseline/) is named and does not
# count; what is new, gone or newly skipped does. PARTS="lint kselftest" picks some.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"
no_args "$@"

unset KERNEL CONFIG TESTS TEST_ARGS TEST_LIMIT FULL FROM
export ARCH=x86_64
ALL_PARTS='tree lint kernel kunit kselftest steps'
PARTS=${PARTS:-$ALL_PARTS}
# shellcheck disable=SC2034 # one_of reads it
for part in $PARTS; do
	# shellcheck disable=SC2086
	one_of part $ALL_PARTS
done

mkdir -p "$REPORT" "$LOGDIR"
lock check
parts=$REPORT/parts
: >"$parts"

# part NAME KTAP cmd...: a command without results of its own (-) is one result.
part() {
	local name=$1 ktap=$2 start=$SECONDS status=0 log=$LOGDIR/check-$1.log
	shift 2
	[[ " $PARTS " == *" $name "* ]] || return 0
	say "=== $name"
	if [[ $ktap == - ]]; then
		ktap=$REPORT/$name.ktap
		rm -f "$ktap"
		"$@" 2>&1 </dev/null | tee "$log" || status=$?
		if ((status)); then
			{
				tail -n 40 "$log" | sed 's/^/# /'
				say "not ok 1 $name"
			} | put_file "$ktap"
		else
			say "ok 1 $name" | put_file "$ktap"
		fi
	else
		rm -f "$ktap"
		"$@" 2>&1 </dev/null | tee "$log" || status=$?
	fi
	printf '%s\t%s\t%d\t%d\t%s\n' "$name" "$ktap" "$status" $((SECONDS - start)) "$log" >>"$parts"
	say "=== $name: ended with status $status after $(elapsed $((SECONDS - start)))"
}

part tree - "$HARNESS/compose.sh"
part lint "$REPORT/lint.ktap" "$HARNESS/lint.sh"
part kernel - env KERNEL=patched CONFIG=test "$HARNESS/kernel.sh"
part kunit "$REPORT/kunit.ktap" env VM=1 "$HARNESS/kunit.sh"
# The VM leaves one of two cores idle most of the time; the compilers yield to it. In a
# process group of its own, the part can be stopped with all that it started.
set -m
part steps "$REPORT/steps.ktap" env QUICK=1 nice -n 15 "$HARNESS/steps.sh" >"$REPORT/steps.out" 2>&1 &
steps=$!
set +m
trap 'kill -- "-$steps" 2>/dev/null || true' EXIT
part kselftest "$REPORT/patched-x86_64.ktap" env KERNEL=patched "TESTS=$OWN_TESTS $UPSTREAM_TESTS" "$HARNESS/kselftest.sh"
wait "$steps"
cat "$REPORT/steps.out"

say "=== summary: build/report/summary.md, build/report/junit.xml"
"$HARNESS/report.py" check "$parts" "$HARNESS/baseline/x86_64.txt" "$REPORT"
