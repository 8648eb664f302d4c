#!/bin/bash
# step-tests.sh - make step-tests: boot the kernel of each patch (x86-64, CONFIG=test), and
# run what of the project's own tests there is at that patch, and upstream's `cow`. It
# goes on for LIMIT= seconds (3600; the last patch that it begins is run to its end), and
# the next run with the patches that have no result. FROM= is a commit of build/linux:
# the patches behind it are looked at (FROM=series~3: the last three).
#
# results/step-tests.tsv has the results: patch, what the code and tests were (a hash),
# passed, failed and skipped cases, date, subject. A patch whose code is another now, or
# of which a test failed, is run again. The last line counts patches.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

LIMIT=${LIMIT:-3600}
[[ $LIMIT =~ ^[1-9][0-9]*$ ]] || die "LIMIT=$LIMIT: a number of seconds is wanted"
results=$ROOT/results/step-tests.tsv
tree=$BUILD/trees/step
ktap=$REPORT/step-x86_64.ktap

"$HARNESS/deps.sh" source build vm
"$HARNESS/compose.sh"
lock step-tests
need_space "$BUILD" 4000
mkdir -p "$LOGDIR"

# What a result depends on, beside the base.
hash_of() {
	git -C "$TREE" ls-tree "$1" -- arch fs include kernel lib mm tools/testing/selftests/mm |
		sha1sum | cut -c1-16
}

# has_passed PATCH HASH
has_passed() {
	local was p f

	IFS=$'\t' read -r _ was p f _ <<<"$(row "$results" "$1")"
	[[ $was == "$2" ]] && ((p && !f))
}

# run_tests COMMIT NAME: sets counts.
run_tests() {
	local test tests=cow log=$LOGDIR/step-tests-$2.log
	worktree step "$1"
	for test in $OWN_TESTS; do
		[[ ! -e $tree/tools/testing/selftests/mm/$test.c ]] || tests+=" $test"
	done
	rm -f "$ktap"
	KERNEL=step CONFIG=test ARCH=x86_64 TESTS=$tests PROGRAMS="$tests write_to_hugetlbfs" \
		"$HARNESS/kselftest.sh" >"$log" 2>&1 || true
	counts=$(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log" | tail -n 1)
}

mapfile -t patches < <(series_lines | cut -d' ' -f1)
mapfile -t commits < <(git -C "$TREE" rev-list --reverse base..series)
((${#patches[@]} == ${#commits[@]})) || die "build/linux and series/ differ; make refresh, or make tree"
nr=$(git -C "$TREE" rev-list --count "${FROM:-base}..series" 2>/dev/null) || die "FROM=$FROM: no commit of build/linux"
((nr && nr <= ${#commits[@]})) || die "FROM=$FROM: not a patch of the series"

passed=0 failed=0 skipped=0
for ((i = ${#commits[@]} - nr; i < ${#commits[@]}; i++)); do
	[[ ${patches[i]} =~ ^([^/]+)/([0-9]{4}) ]]
	patch=${BASH_REMATCH[1]}/${BASH_REMATCH[2]}
	hash=$(hash_of "${commits[i]}")
	subject=$(git -C "$TREE" log -1 --format=%s "${commits[i]}")
	if has_passed "$patch" "$hash"; then
		passed=$((passed + 1))
		continue
	fi
	if ((SECONDS > LIMIT)); then
		skipped=$((skipped + 1))
		continue
	fi
	start=$SECONDS
	run_tests "${commits[i]}" "${patch/\//-}"
	read -r p f s <<<"${counts:-0 1 0}"
	put_row "$results" "$patch" "$hash" "$p" "$f" "$s" "$(date -u +%F)" "$subject"
	if ((p && !f)); then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		tail -n 5 "$LOGDIR/step-tests-${patch/\//-}.log" | cut -c1-200 | sed 's/^/# /'
	fi
	say "step-tests: $patch: $subject: $p passed, $f failed, $s skipped in $(elapsed $((SECONDS - start)))"
done
((!skipped)) || say "patches that the time did not do for: $skipped; make step-tests goes on with them"
say "$passed passed, $failed failed, $skipped skipped"
((!failed))
