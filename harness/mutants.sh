#!/bin/bash
# mutants.sh - make mutants: break one rule of the code at a time, and see the tests
# fail. Each file of mutants/ is one breach:
#
#	Rule: what the code promises, or why nothing shows
#	Mutation: how it is broken
#	Test: the program that is run
#	Args: its arguments, where it has some
#	Caught-by: the tests that have to fail, or: nothing; of a|b at least one
#
# and behind a line "---" the change to build/linux. With "nothing", all tests have to
# pass. MUTANTS="zero-*" picks some. What other tests failed is told, too.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

MUTANTS=${MUTANTS:-*}
"$HARNESS/deps.sh" source build vm
"$HARNESS/compose.sh"
lock mutants
need_space "$BUILD" 4000

tree=$BUILD/trees/mutant
ktap=$REPORT/mutant-x86_64.ktap
mapfile -t files < <(cd "$HARNESS/mutants" && for name in $MUTANTS; do compgen -G "${name%.patch}.patch" || say "${name%.patch}.patch"; done)

field() { sed -n "/^---\$/q; s/^$2: //p" "$1"; }

# The patched tree with one breach; the objects of the last one stay.
mutate() {
	worktree mutant series
	git -C "$tree" apply "$1"
}

# The tests that failed, without the names of fixtures and folio sizes.
failed() {
	sed -n 's/^# not ok [0-9]* //p' "$ktap" | sed 's/ *#.*//; s/.*\.//' | awk '!seen[$0]++'
	if grep -q '^not ok .*kernel log' "$ktap"; then say splat; fi
	if grep -q '^not ok .*TIMEOUT' "$ktap"; then say never-ends; fi
	if grep -q '^not ok .*not run' "$ktap"; then say died; fi
}

# any_of A|B FAILED: one of them is among those that failed.
any_of() {
	local test

	for test in ${1//|/ }; do
		[[ " $2" != *" $test "* ]] || return 0
	done
	return 1
}

# verdict FILE: one line of KTAP.
verdict() {
	local now want test missing=()

	now=$(failed | tr '\n' ' ')
	want=$(field "$1" Caught-by)
	say "# failed: ${now:-nothing}"
	if [[ $want == nothing ]]; then
		[[ -z $now ]] || missing=(nothing)
	else
		for test in ${want//,/ }; do
			any_of "$test" "$now" || missing+=("$test")
		done
	fi
	[[ ${#missing[@]} -eq 0 ]] || say "# did not fail as it should: ${missing[*]}"
	return "${#missing[@]}"
}

n=0 bad=0
say "TAP version 13"
say "1..${#files[@]}"
for file in "${files[@]}"; do
	n=$((n + 1))
	file=$HARNESS/mutants/$file
	name=$(basename "$file" .patch)
	[[ -e $file ]] || die "MUTANTS: no $file; there are: $(cd "$HARNESS/mutants" && echo *)"
	result=ok
	if ! mutate "$file"; then
		say "# does not apply to build/linux"
		result='not ok'
	else
		rm -f "$ktap"
		KERNEL=mutant CONFIG=test ARCH=x86_64 TESTS=$(field "$file" Test) TEST_ARGS=$(field "$file" Args) \
			"$HARNESS/kselftest.sh" >"$LOGDIR/mutant-$name.log" 2>&1 || true
		if [[ ! -e $ktap ]]; then
			tail -n 20 "$LOGDIR/mutant-$name.log" | sed 's/^/# /'
			result='not ok'
		else
			verdict "$file" || result='not ok'
		fi
	fi
	[[ $result == ok ]] || bad=$((bad + 1))
	say "$result $n $name: $(field "$file" Mutation)"
done
say "$((n - bad)) passed, $bad failed, 0 skipped"
((!bad))
