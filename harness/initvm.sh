#!/bin/bash
# initvm.sh DIR COMMAND... - boot KERNEL=base|patched CONFIG=test|bench|debug|kcsan|rt|16k|64k
# ARCH=x86_64|arm64 with an initramfs of busybox and DIR, and run COMMAND in DIR.
#
# For what virtme-ng cannot do: another architecture than the machine's, and a guest
# whose instructions QEMU counts (VM_ICOUNT=1: one CPU, the clock is the number of
# instructions that the guest executed). Programs are static or scripts. IMAGE=,
# VM_TIMEOUT=, VM_MEM=, VM_CPUS=, VM_APPEND= and exit status: as vm.sh.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

KERNEL=${KERNEL:-patched}
CONFIG=${CONFIG:-test}
ARCH=${ARCH:-x86_64}
one_of KERNEL base patched
one_of CONFIG test bench debug kcsan rt 16k 64k
one_of ARCH x86_64 arm64
image=bzImage
[[ $ARCH == x86_64 ]] || image=Image
IMAGE=${IMAGE:-$BUILD/$ARCH/$KERNEL-$CONFIG/$image}
VM_TIMEOUT=${VM_TIMEOUT:-900}
VM_MEM=${VM_MEM:-2048}
VM_CPUS=${VM_CPUS:-2}
[[ $# -gt 1 && -d $1 ]] || die "usage: initvm.sh DIR COMMAND..."
[[ -e $IMAGE ]] || die "$IMAGE is missing; make kernel KERNEL=$KERNEL CONFIG=$CONFIG ARCH=$ARCH"

name=vm-$KERNEL-$CONFIG-$ARCH
console=$LOGDIR/$name.console
mkdir -p "$LOGDIR"
command="$(for var in KERNEL CONFIG ARCH IMAGE VM_TIMEOUT VM_MEM VM_CPUS ${VM_ICOUNT:+VM_ICOUNT} ${VM_APPEND:+VM_APPEND}; do
	printf '%s=%q ' "$var" "${!var}"
done)$(quoted "$0" "$@")"
tmp=$(mktemp -d "$BUILD/initvm.XXXXXX")
# vm_run has an EXIT trap of its own.
cleanup() { rm -rf "$tmp"; }
trap cleanup EXIT

if [[ $ARCH == arm64 ]]; then
	"$HARNESS/deps.sh" arm64
	"$HARNESS/arm64.sh" libs
	busybox=$CACHE/arm64/root/bin/busybox
	qemu=(qemu-system-aarch64 -M "virt,gic-version=3" -cpu "max,pauth-impdef=on")
	tty=ttyAMA0
else
	"$HARNESS/deps.sh" bench
	busybox=$(command -v busybox)
	qemu=(qemu-system-x86_64 -cpu max)
	[[ $(vm_accel) == tcg || ${VM_ICOUNT:-} ]] || qemu=(qemu-system-x86_64 -accel kvm -cpu host)
	tty=ttyS0
fi
if [[ ${VM_ICOUNT:-} ]]; then
	VM_CPUS=1
	qemu+=(-icount "shift=0,sleep=off" -rtc "base=2026-01-01,clock=vm")
	# With these flags a copied page is one instruction a byte.
	[[ $ARCH == arm64 ]] || qemu+=(-cpu "max,-erms,-fsrm")
fi
qemu+=(-nodefaults -no-user-config -no-reboot -display none -m "$VM_MEM" -smp 1)
if ((VM_CPUS > 1)); then
	half=$((VM_CPUS / 2))
	qemu+=(-smp "$VM_CPUS,sockets=2,cores=$half,threads=1"
		-object "memory-backend-ram,id=m0,size=$((VM_MEM / 2))M" -numa "node,memdev=m0,cpus=0-$((half - 1))"
		-object "memory-backend-ram,id=m1,size=$((VM_MEM / 2))M" -numa "node,memdev=m1,cpus=$half-$((VM_CPUS - 1))")
fi

root=$tmp/root
mkdir -p "$root"/{bin,sbin,usr,proc,sys,dev,run,tmp,etc}
cp "$busybox" "$root/bin/busybox"
cp -rL "$1" "$root/work"
shift
cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t debugfs debugfs /sys/kernel/debug
ln -s /proc/self/fd /dev/fd
export PATH=/bin HOME=/tmp
cd /work
stty raw -echo </dev/hvc0
{ $(quoted "$@"); rc=\$?; echo; echo "harness: exit \$rc"; } </dev/null >/dev/hvc0 2>&1
sync
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet | gzip -1) >"$tmp/initrd"
rm -rf "$root"

qemu+=(-kernel "$IMAGE" -initrd "$tmp/initrd"
	-append "console=$tty panic=-1 ${VM_APPEND:-}"
	-serial "file:$console"
	-device virtio-serial-pci -chardev "stdio,id=out,signal=off" -device "virtconsole,chardev=out")

rc=0
: >"$console"
(trap - EXIT; vm_run "$VM_TIMEOUT" "$tmp/stderr" "${qemu[@]}") |
	sed -u -e 's/\r$//' -e "/^harness: exit /{w $tmp/rc" -e 'd}' || rc=$?
cat "$tmp/stderr" >>"$console"
if ((rc == 0)); then
	if [[ -s $tmp/rc ]]; then
		rc=$(sed 's/.* //' "$tmp/rc")
	else
		rc=255
	fi
fi
vm_verdict "$rc" "$VM_TIMEOUT" "$console" "$command"
