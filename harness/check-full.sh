#!/bin/bash
# check-full.sh - make check-full: what takes too long for `make check`, for LIMIT= seconds
# (3600). First come the parts that have no result for the series as they are, then the
# one with the oldest result; what does not fit into the rest of the time waits for
# the next run. PARTS="debug kcsan" picks some.
#
# The last result of each part is kept in results/check-full.tsv, and results/check-full.md
# shows them. A part that was cut off at the limit has none. Logs: build/log/full-*.log.
# What failed of a part stands in results/failed-PART.log until the part passes.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/kselftest.conf
. "$HARNESS/kselftest.conf"
# shellcheck source=harness/base.env
. "$HARNESS/base.env"
no_args "$@"

unset KERNEL CONFIG ARCH TESTS TEST_ARGS TEST_LIMIT DURATION SEED REPLAY CONFIGS FULL FROM QUICK
LIMIT=${LIMIT:-3600}
[[ $LIMIT =~ ^[1-9][0-9]*$ ]] || die "LIMIT=$LIMIT: a number of seconds is wanted"
results=$ROOT/results/check-full.tsv

# Name, seconds on 2 cores with kernels that are built, what it is, command.
parts() {
	local own="TESTS='$OWN_TESTS'" all="TESTS='$OWN_TESTS ${UPSTREAM_TESTS//$'\n'/ }'"

	cat <<-PARTS
		debug|3000|own and upstream's tests under KASAN, lockdep, DEBUG_ATOMIC_SLEEP, page table check|CONFIG=debug $all kselftest.sh
		stress|1500|cow_stress for 20 minutes on four virtual CPUs|DURATION=1200 stress.sh
		kcsan|1800|own tests under KCSAN|CONFIG=kcsan $own kselftest.sh
		rt|600|own tests with PREEMPT_RT, which excludes THP: files only|CONFIG=rt $own kselftest.sh
		arm64|1500|own tests on arm64 with pages of 4K and contpte|ARCH=arm64 $own kselftest.sh
		arm64-64k|1500|own tests on arm64 with pages of 64K|ARCH=arm64 CONFIG=64k $own kselftest.sh
		stress-debug|900|cow_stress for 10 minutes on the debug kernel|CONFIG=debug DURATION=600 stress.sh
		small-folios|600|page faults on small folios against base, in guest instructions|small-folios.sh
		steps|2400|each patch by itself in all configs, clang at the last one of each series|steps.sh
		step-tests|3600|each patch booted, with the tests that there are at it|LIMIT=3000 step-tests.sh
		coverage|1200|lines of the series that no test reaches, by gcov|coverage.sh
		cocci|2400|coccicheck of mm/ against base|LIMIT=3000 cocci.sh
		docs|600|htmldocs of the touched pages against base|docs.sh
	PARTS
}

series_id() {
	local paths=(series mm tools Documentation include ':!series/*/0000-cover-letter.patch')

	printf '%s%s\n' "$(git -C "$ROOT" log -1 --format=%h -- "${paths[@]}")" \
		"$(git -C "$ROOT" diff --quiet HEAD -- "${paths[@]}" || echo -dirty)"
}

# Which one is due: without a result for these series 0, else the time of the last one.
due() {
	local name=$1 date series

	IFS=$'\t' read -r _ date series _ <<<"$(row "$results" "$name")"
	[[ $series != "$id" ]] || { date -d "$date" +%s; return; }
	say 0
}

# put_result PART PASSED FAILED SKIPPED SECONDS; other parts may run at the same time.
put_result() (
	lock check-full
	put_row "$results" "$1" "$(date -u +%FT%TZ)" "$id" "$BASE_VERSION" "$2" "$3" "$4" "$5"
)

# keep_failures NAME FAILED LOG: the failed cases with what is said before them, as
# build/log/ has only the last run, and only on this machine.
keep_failures() {
	local kept=$ROOT/results/failed-$1.log

	if (($2 == 0)); then
		rm -f "$kept"
		return
	fi
	{
		say "# $1, series $id, kernel $BASE_VERSION, $(date -u +%FT%TZ)"
		grep -B 30 -E '^(# )*not ok ' "$3" || tail -n 100 "$3"
	} | sed -n 1,1000p | cut -c1-300 | put_file "$kept"
	tail -n 15 "$kept"
	say "=== $1: more in results/failed-$1.log"
}

# run_part NAME LEFT COMMAND
run_part() {
	local name=$1 left=$2 command=$3 log=$LOGDIR/full-$1.log start=$SECONDS rc=0 counts p f s

	lock "full-$name"
	say "=== $name: at most $left s; log: build/log/full-$name.log"
	timeout -k 60 "$left" bash -c "exec env PATH=$(quoted "$HARNESS:$PATH") $command" \
		>"$log" 2>&1 </dev/null || rc=$?
	if ((rc == 124 || rc == 137)) && ((SECONDS - start >= left)); then
		say "=== $name: cut off, no result"
		cut+=("$name")
		return
	fi
	# A part without cases is one itself.
	counts=$(grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1) || true
	read -r p _ f _ s _ <<<"${counts:-$((rc == 0)) passed, $((rc != 0)) failed, 0 skipped}"
	# It fails without a failed case, or all is skipped.
	if ((f == 0)) && ((rc || p == 0)); then
		f=1
	fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	put_result "$name" "$p" "$f" "$s" $((SECONDS - start))
	keep_failures "$name" "$f" "$log"
	say "=== $name: $p passed, $f failed, $s skipped in $(elapsed $((SECONDS - start)))"
}

report() {
	local name what date series kernel p f s secs

	say "# make check-full"
	say
	say "The last result of each part, of runs that are limited in time (\`make check-full LIMIT=3600\`)."
	say "Series as of now: commit $id. Results of another commit are those of older series."
	say
	say "| part | what | series | kernel | date | passed | failed | skipped | time |"
	say "|---|---|---|---|---|--:|--:|--:|--:|"
	while IFS='|' read -r name _ what _; do
		IFS=$'\t' read -r _ date series kernel p f s secs <<<"$(row "$results" "$name")"
		if [[ $date ]]; then
			say "| $name | $what | $series | $kernel | ${date%T*} | $p | $f | $s | $(elapsed "$secs") |"
		else
			say "| $name | $what | | | not run yet | | | | |"
		fi
	done < <(parts)
}

mkdir -p "$LOGDIR"
id=$(series_id)
names=$(parts | cut -d'|' -f1 | tr '\n' ' ')
PARTS=${PARTS:-$names}
# shellcheck disable=SC2034 # one_of reads it
for part in $PARTS; do
	# shellcheck disable=SC2086
	one_of part $names
done

passed=0 failed=0 skipped=0 cut=() waiting=()
while read -r _ name; do
	[[ " $PARTS " == *" $name "* ]] || continue
	IFS='|' read -r _ needs _ command < <(parts | grep "^$name|")
	secs=$(row "$results" "$name" | cut -f8)
	left=$((LIMIT - SECONDS))
	# timeout takes 0 for no limit.
	if ((left <= 0 || left < ${secs:-$needs})); then
		waiting+=("$name")
		continue
	fi
	run_part "$name" "$left" "$command"
done < <(parts | while IFS='|' read -r name _; do say "$(due "$name") $name"; done | sort -s -n -k1,1)

(
	lock check-full
	report | put_file "$ROOT/results/check-full.md"
)
say "=== results/check-full.md"
[[ ${#cut[@]} -eq 0 ]] || say "cut off at the limit of $LIMIT s: ${cut[*]}"
[[ ${#waiting[@]} -eq 0 ]] || say "not run, as the time would not do: ${waiting[*]}"
say "$passed passed, $failed failed, $((skipped + ${#cut[@]} + ${#waiting[@]})) skipped"
((failed == 0))
