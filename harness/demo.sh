# shellcheck shell=bash
# demo.sh - what demo-redis.sh and demo-forkserver.sh share. Source it after lib.sh.
#
# DEMO_COLUMNS="base patched always" are the kernels and settings that are measured:
# "always" is patched with debugfs cow/copy set so, the policy to compare with. NATIVE=1
# measures the kernel that runs now instead, KVM=1 does not fall back to emulation.
# RESULTS= is another directory than results/ (NATIVE=1: build/report/native).

[[ ! ${KVM:-} || $(vm_accel) == kvm ]] ||
	die "KVM=1: no vmx or svm in /proc/cpuinfo, or no right to write to /dev/kvm; without KVM=1 it is emulated"
[[ ! ${KVM:-} || ! ${NATIVE:-} ]] || die "KVM=1 and NATIVE=1: choose one of them"

columns=${DEMO_COLUMNS:-base patched}
results=${RESULTS:-$ROOT/results}
if [[ ${NATIVE:-} ]]; then
	[[ $(id -u) == 0 ]] || die "NATIVE=1 sets hugepages-64kB/enabled while it runs; run it as root"
	[[ -e /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled ]] ||
		die "NATIVE=1: the running kernel has no folios of 64K; that is Linux 6.8 with CONFIG_TRANSPARENT_HUGEPAGE, or later"
	columns=this
	results=${RESULTS:-$REPORT/native}
fi

demo_kernel_of() {
	case $1 in
	base | patched) say "$1" ;;
	always) say patched ;;
	*) die "DEMO_COLUMNS: $1: unknown; choose from: base patched always" ;;
	esac
}

# Builds the kernels of the columns.
demo_kernels() {
	local kernel column
	[[ ! ${NATIVE:-} ]] || return 0
	for column in $columns; do
		demo_kernel_of "$column" >/dev/null
	done
	for kernel in base patched; do
		for column in $columns; do
			[[ $(demo_kernel_of "$column") == "$kernel" ]] || continue
			CONFIG=bench KERNEL=$kernel ARCH=x86_64 "$HARNESS/kernel.sh"
			break
		done
	done
}

# A shell command for what the column needs set.
demo_setup_of() {
	[[ $1 != always ]] || say 'mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug; echo always >/sys/kernel/debug/cow/copy || exit;'
}

# demo_build OUT ARGUMENT...: a program of guest/.
demo_build() {
	run_logged "demo-${1##*/}" gcc -O2 -Wall -Wextra -Werror -o "$@"
}

# demo_merge NAME: records on stdin take the place of those of the same kernels.
demo_merge() {
	local json=$results/$1.json
	mkdir -p "$results"
	[[ -e $json ]] || say '[]' >"$json"
	jq -cn --slurpfile old "$json" '[inputs] as $new | ($new | map(.kernel)) as $done
		| ($old[0] | map(select(.kernel as $k | $done | index($k) | not))) + $new | .[]' |
		sed -e '1s/^/[/; $!s/$/,/; $s/$/]/' | put_file "$json"
}
