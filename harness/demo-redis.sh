#!/bin/bash
# demo-redis.sh - make demo-redis: redis-server with folios of 64K saves (BGSAVE) while
# redis-benchmark stores, on base and patched, RUNS=3 times each (guest/redis.sh).
# Writes results/demo-redis.json and, by demo-report.sh, the tables.
#
# Redis does without huge pages if transparent_hugepage/enabled is [always]; here it
# stays at [madvise], and 64K alone is switched on. CASES= are other ones than below.
# DEMO_COLUMNS=, NATIVE=1 and KVM=1: demo.sh.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"
# shellcheck source=harness/demo.sh
. "$HARNESS/demo.sh"
RUNS=${RUNS:-3}
[[ $RUNS =~ ^[1-9][0-9]*$ ]] || die "RUNS=$RUNS: a number is wanted"
# NAME:KEYS:BYTES:HOT:STORES; 200 to 250 MiB each.
CASES=${CASES:-uniform-1K:160000:1024:160000:16000 hot-1K:160000:1024:1600:16000 uniform-8K:24000:8192:24000:4000}

"$HARNESS/deps.sh" vm demo
demo_kernels
lock demo-redis
# Below build/, as the guest has a /tmp of its own.
tmp=$(mktemp -d "$BUILD/demo.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/programs"
demo_build "$tmp/programs/folios" -static "$HARNESS/guest/folios.c"
demo_build "$tmp/programs/fixed_seed.so" -shared -fPIC "$HARNESS/guest/fixed_seed.c"

# measure COLUMN RUN
measure() {
	local command
	# shellcheck disable=SC2086 # one argument a case
	command=$(quoted bash "$HARNESS/guest/redis.sh" "$tmp/programs" "$1" "$2" $CASES)
	if [[ ${NATIVE:-} ]]; then
		bash -c "$command"
		return
	fi
	KERNEL=$(demo_kernel_of "$1") CONFIG=bench VM_MEM=${VM_MEM:-2048} VM_TIMEOUT=3600 \
		"$HARNESS/vm.sh" bash -c "$(demo_setup_of "$1") $command"
}

# The columns take turns, so that what else the machine does meets all of them.
for ((run = 1; run <= RUNS; run++)); do
	for column in $columns; do
		start=$SECONDS
		measure "$column" "$run" | tee "$tmp/out" | { grep --line-buffered '^#' || true; }
		grep '^{' "$tmp/out" >"$tmp/$column-$run.json" || die "no record: $(tail -n 3 "$tmp/out")"
		jq -es --argjson n "$(wc -w <<<"$CASES")" 'length == $n' "$tmp/$column-$run.json" >/dev/null ||
			die "redis.sh did not come to its end: $(tail -n 3 "$tmp/out" | cut -c1-300)"
		say "demo-redis: $column, run $run of $RUNS: done in $(elapsed $((SECONDS - start)))"
	done
done
cat "$tmp"/*.json | demo_merge demo-redis
RESULTS=$results "$HARNESS/demo-report.sh"
