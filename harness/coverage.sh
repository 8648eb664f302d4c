#!/bin/bash
# coverage.sh - make coverage: which of the lines that the series add to the kernel no
# test reaches. The files that the series touch are compiled with gcov (CONFIG=test), and
# TESTS="program ..." run: by default the project's own, and upstream's `cow`.
#
# results/coverage.md lists what was not reached, each line with its reason, which is in
# coverage.reasons. A file with a line that has none fails (build/report/coverage.ktap).
# 40 minutes on two cores under TCG; the kernel is the first half.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"
no_args "$@"

export KERNEL=gcov CONFIG=test ARCH=x86_64
export TESTS=${TESTS:-$OWN_TESTS cow}
RESULTS=${RESULTS:-$ROOT/results}
"$HARNESS/deps.sh" source build vm
"$HARNESS/compose.sh"
lock coverage
need_space "$BUILD" 4000

tree=$BUILD/trees/gcov
head=$(git -C "$BUILD/linux" rev-parse HEAD)
worktree gcov "$head"
mapfile -t touched < <(git -C "$tree" diff --name-only --diff-filter=d base HEAD -- 'mm/*.c' 'arch/x86/mm/*.c' |
	grep -v '^mm/tests/')
for file in "${touched[@]}"; do
	base=${file##*/}
	say "GCOV_PROFILE_${base%.c}.o := y" >>"$tree/${file%/*}/Makefile"
done

"$HARNESS/kselftest.sh" | sed -u '/^# gcov: /d' || warn "tests failed; what was reached counts"
lock coverage-data
data=$BUILD/gcov
rm -rf "$data"
mkdir -p "$data/guest"
sed -n 's/^# gcov: //p' "$REPORT/gcov-x86_64.ktap" | base64 -d | tar -C "$data/guest" -xzf - ||
	die "the guest printed no data of gcov; see $REPORT/gcov-x86_64.ktap"
for file in "${touched[@]}"; do
	object=$tree/.build-x86_64-test/${file%.c}
	name=${file//\//-}
	[[ -e $object.gcno ]] || { warn "notice: $file is not compiled"; continue; }
	mv "$data/guest/$(basename "$object").gcda" "$data/${name%.c}.gcda" || die "the guest printed no data of $file"
	cp "$object.gcno" "$data/${name%.c}.gcno"
done
(cd "$data" && gcov --json-format --stdout ./*.gcno) >"$data/lines.json" 2>"$LOGDIR/gcov.log" ||
	{ fail_log gcov "$LOGDIR/gcov.log"; exit 1; }

mkdir -p "$RESULTS"
"$HARNESS/coverage.py" "$tree" "$data/lines.json" "$HARNESS/coverage.reasons" \
	"$RESULTS/coverage.md" "$REPORT/coverage.ktap"
say "results: $RESULTS/coverage.md"
"$HARNESS/report.py" count "$REPORT/coverage.ktap"
