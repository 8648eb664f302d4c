#!/bin/bash
# kselftest.sh - run selftests of mm in a VM: KERNEL=base|patched,
# CONFIG=test|debug|kcsan|rt|16k|64k, ARCH=x86_64|arm64, TESTS="program ..." (the default and the
# time limits stand in kselftest.conf). TEST_ARGS= goes to each of them, and
# TEST_LIMIT= is another time limit in seconds.
#
# KTAP goes to the terminal and to build/report/KERNEL-ARCH.ktap. It is what
# kselftest's runner.sh writes:
#
#	TAP version 13
#	1..N
#	# timeout set to 300
#	# selftests: mm: cow
#	# TAP version 13                  the program's output, behind "# "
#	# 1..2
#	# ok 1 a case
#	# ok 2 another # SKIP no swap
#	# took 12 s
#	ok 1 selftests: mm: cow           not ok: # exit=1, # TIMEOUT 300 seconds,
#	...                               # incomplete: ..., # not run: ...
#	ok N selftests: mm: kernel log    not ok: # the first line that the kernel
#	                                  complained with (splats.txt)
#
# The last line counts test cases: a program's nested results where it has them,
# else the program itself; a program that fails without a failed case is one too.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"

no_args "$@"
export KERNEL=${KERNEL:-patched} CONFIG=${CONFIG:-test} ARCH=${ARCH:-x86_64}
TESTS=${TESTS:-$OWN_TESTS}
one_of KERNEL base patched mutant step gcov
one_of CONFIG test debug kcsan rt 16k 64k
one_of ARCH x86_64 arm64
slow=1
[[ $CONFIG == test ]] || slow=4

# invocations PROGRAM: as run_vmtests.sh runs it, with each set of arguments.
invocations() {
	sed -E 's/\$\{uffd_stress_bin\}/.\/uffd-stress/; s/\$\{SPLIT_HUGE_PAGE_TEST_XFS_PATH\}/.\/ext4/' "$mm/run_vmtests.sh" |
		awk -v prog="./$1" '/ run_test / && !/\\$/ {
			sub(/.* run_test /, "")
			for (i = 1; i <= NF; i++)
				if ($i == prog && !seen[$0]++) print
		}'
}

"$HARNESS/deps.sh" source build vm
"$HARNESS/kernel.sh"
"$HARNESS/selftests.sh"
mm=$BUILD/$ARCH/kselftest/mm
[[ $KERNEL != step ]] || mm=$BUILD/$ARCH/kselftest-step/mm
mkdir -p "$BUILD/$ARCH/kselftest"
list=$BUILD/$ARCH/kselftest/list-$KERNEL-$CONFIG
name=$KERNEL-$ARCH
[[ $CONFIG == test ]] || name+=-$CONFIG
report=$REPORT/$name.ktap
lock "kselftest-$name"

total=0
for test in $TESTS; do
	[[ $test =~ ^[A-Za-z0-9_.-]+$ && ( -x $mm/$test || " ${NOT_BUILT[$ARCH]:-} " == *" $test "* ) ]] ||
		die "TESTS: $test: no such program; choose from: $(cd "$mm" && find . -maxdepth 1 -type f -perm -u+x ! -name '*.sh' -printf '%f ' | tr ' ' '\n' | sort | tr '\n' ' ')"
	limit=${TEST_LIMIT:-$((slow * ${TEST_TIMEOUTS[$test]:-$TEST_TIMEOUT}))}
	# The guest takes 0 for "not built".
	[[ -x $mm/$test ]] || limit=0
	lines=$(invocations "$test")
	while read -r line; do
		say "$limit $line${TEST_ARGS:+ $TEST_ARGS}"
		total=$((total + limit))
	done <<<"${lines:-./$test}" >>"$list.tmp$$"
done
mv "$list.tmp$$" "$list"
# One file, as the guest reads many small ones slowly.
tar=$list.tar
# With a file system for the tests that want one with large folios.
ext4=$BUILD/$ARCH/kselftest/ext4.img
if [[ ! -e $ext4 ]]; then
	truncate -s 64M "$ext4.tmp"
	PATH=$PATH:/usr/sbin run_logged mkfs mkfs.ext4 -qF "$ext4.tmp"
	mv "$ext4.tmp" "$ext4"
fi
{
	cd "$mm" || exit
	cut -d' ' -f2- "$list" | tr ' ' '\n' | grep '^\./' | grep -vx ./ext4 |
		while read -r file; do
			[[ ! -e $file ]] || say "$file"
		done
	printf '%s\n' ./*.sh ./write_to_hugetlbfs | grep -v '^\./ksft_'
} | sort -u | tar -c -C "$BUILD/$ARCH/kselftest" ext4.img -C "$mm" -T - | put_file "$tar"
mapfile -t commands < <(cut -d' ' -f2- "$list")
plan=$((${#commands[@]} + 1))

# Each program has its limit; this one is for a guest that hangs.
export VM_TIMEOUT=$((total + 300 * slow))
guest=$HARNESS/guest/kselftest.sh
[[ $KERNEL != gcov ]] || guest=$HARNESS/guest/coverage.sh
if [[ $ARCH == x86_64 ]]; then
	run=("$HARNESS/vm.sh" sh "$guest" "$tar" "$list")
else
	run=("$HARNESS/arm64.sh" run "$tar" "$list")
fi

mkdir -p "$REPORT"
tmp=$report.tmp
rm -f "$report"
rc=0
{
	say "TAP version 13"
	say "1..$plan"
	"${run[@]}"
} | tee "$tmp" || rc=$?

# What the guest did not come to is a failure, and so is what the kernel
# complained about.
finish() {
	local console=$LOGDIR/vm-$KERNEL-$CONFIG.console why i splat
	[[ $ARCH == x86_64 ]] || console=$LOGDIR/vm-$KERNEL-$CONFIG-$ARCH.console
	case $rc in
	124) why="the VM ran into its time limit" ;;
	*) why="the VM died" ;;
	esac
	[[ -z $(tail -c 1 "$tmp") ]] || echo
	i=$(grep -cE '^(not )?ok [0-9]+ selftests: mm: ' "$tmp") || true
	for ((; i < plan - 1; i++)); do
		say "not ok $((i + 1)) selftests: mm: ${commands[i]#./} # not run: $why"
	done
	if splat=$(find_splats "$console"); then
		awk '{ print "# " $0 }' <<<"$splat"
		say "not ok $plan selftests: mm: kernel log # $(head -n 1 <<<"$splat")"
	else
		say "ok $plan selftests: mm: kernel log"
	fi
}
finish | tee -a "$tmp"
mv "$tmp" "$report"

"$HARNESS/report.py" count "$report"
