#!/bin/bash
# vm.sh [COMMAND...] - boot the kernel KERNEL=base|patched CONFIG=test|bench|debug|kcsan|rt|16k|64k
# with virtme-ng and run COMMAND in it as root; without one, a shell.
#
# The root file system is the machine's own, read-only. Output goes to stdout, the
# console to build/log/vm-KERNEL-CONFIG.console. IMAGE= boots another kernel,
# VM_TIMEOUT= is in seconds, VM_MEM= in MiB, VM_CPUS= 1 or even, VM_APPEND= goes to
# the kernel's command line. The exit status is the command's; 124: time limit,
# 98: the kernel complained (splats.txt), 99: the VM died.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

KERNEL=${KERNEL:-patched}
CONFIG=${CONFIG:-test}
one_of KERNEL base patched mutant step gcov
one_of CONFIG test bench debug kcsan rt 16k 64k
IMAGE=${IMAGE:-$BUILD/x86_64/$KERNEL-$CONFIG/bzImage}
VM_TIMEOUT=${VM_TIMEOUT:-600}
VM_MEM=${VM_MEM:-3072}
VM_CPUS=${VM_CPUS:-2}
[[ $VM_CPUS == 1 || $((VM_CPUS % 2)) == 0 ]] || die "VM_CPUS=$VM_CPUS: 1 or an even number"
[[ $# -gt 0 || -t 0 ]] || die "usage: vm.sh COMMAND... (a shell needs a terminal)"
[[ -e $IMAGE ]] || die "$IMAGE is missing; make kernel KERNEL=$KERNEL CONFIG=$CONFIG"
"$HARNESS/deps.sh" vm

console=$LOGDIR/vm-$KERNEL-$CONFIG.console
mkdir -p "$LOGDIR"
command="$(for var in KERNEL CONFIG IMAGE VM_TIMEOUT VM_MEM VM_CPUS ${VM_APPEND:+VM_APPEND}; do
	printf '%s=%q ' "$var" "${!var}"
done)$(quoted "$0" "$@")"

vng=(vng --run "$IMAGE" --force-9p --user root --name vm --memory "${VM_MEM}M")
# Two nodes need two sockets, else the kernel complains about the topology.
opts=
if ((VM_CPUS > 1)); then
	half=$((VM_CPUS / 2))
	vng+=(--numa "$((VM_MEM / 2))M,cpus=0-$((half - 1))" --numa "$((VM_MEM / 2))M,cpus=$half-$((VM_CPUS - 1))")
	opts="-smp $VM_CPUS,sockets=2,cores=$half,threads=1"
fi
vng+=(--cpus "$VM_CPUS")
if [[ $(vm_accel) == tcg ]]; then
	# The kernel does not trust the TSC of two sockets; without it each look
	# at the clock is an exit to the emulator.
	vng+=(--disable-kvm --append tsc=reliable)
	opts+=" -cpu max"
fi
vng+=(--qemu-opts="$opts")
# Nothing on the host changes below the guest's feet: cache what it reads.
vng+=(--append "rootflags=version=9p2000.L,trans=virtio,access=any,cache=loose")
[[ -z ${VM_APPEND:-} ]] || vng+=(--append "$VM_APPEND")
[[ $# -gt 0 ]] || exec "${vng[@]}"
vng+=(--verbose --exec "$(quoted "$@") 2>&1")

# Through a pipe: QEMU would truncate a file that it is given as stdout.
rc=0
vm_run "$VM_TIMEOUT" "$console" "${vng[@]}" | cat || rc=$?
vm_verdict "$rc" "$VM_TIMEOUT" "$console" "$command"
