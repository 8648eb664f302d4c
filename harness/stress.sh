#!/bin/bash
# stress.sh - make stress: cow_stress for DURATION= seconds (1200) on VM_CPUS=4 virtual
# CPUs, with the families of SEED= and the next ones (default: any). REPLAY=SEED runs
# one family again and prints its steps. KERNEL= and CONFIG= as in kselftest.sh.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
DURATION=${DURATION:-1200}
for var in DURATION SEED REPLAY; do
	[[ ${!var:-0} =~ ^[0-9]+$ ]] || die "$var=${!var}: a number is wanted"
done
((DURATION)) || die "DURATION=0: at least a second"

export VM_CPUS=${VM_CPUS:-4} TESTS=cow_stress
export TEST_ARGS="-d $DURATION${SEED:+ -s $SEED}${REPLAY:+ --replay $REPLAY}"
# The last families may end late.
export TEST_LIMIT=$((DURATION + 600))
exec "$HARNESS/kselftest.sh"
