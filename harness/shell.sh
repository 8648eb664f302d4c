#!/bin/bash
# shell.sh - a root shell in the kernel KERNEL=base|patched CONFIG=test|bench|debug.
#
# It sees the machine's files, read-only with writable overlays in memory, and starts
# among the built selftests. Ctrl-D or `poweroff -f` ends it.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
export KERNEL=${KERNEL:-patched} CONFIG=${CONFIG:-test}
[[ ${ARCH:-x86_64} == x86_64 ]] || die "ARCH=$ARCH: there is a shell for x86_64 only"
[[ -t 0 && -t 1 ]] || die "a shell needs a terminal; harness/vm.sh COMMAND runs one command"
"$HARNESS/deps.sh" vm
"$HARNESS/kernel.sh"
"$HARNESS/selftests.sh"
cd "$BUILD/x86_64/kselftest/mm" || exit
exec "$HARNESS/vm.sh"
