#!/bin/bash
# arm64.sh libs - the static libraries that arm64 selftests are linked with, and a
# busybox, from the machine's own Debian release: build/cache/arm64/root.
# arm64.sh run TAR LIST - run selftests, see kselftest.sh.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

libs() {
	local root=$CACHE/arm64/root pkg deb
	local -a packages=(libnuma-dev libcap-dev liburing-dev busybox-static)

	[[ ! -d $root ]] || return 0
	lock arm64
	"$HARNESS/source.sh" "${packages[@]/%/:arm64}"
	rm -rf "$root.tmp"
	mkdir -p "$root.tmp"
	for pkg in "${packages[@]}"; do
		deb=$(echo "$CACHE/${pkg}"_*_arm64.deb)
		run_logged "unpack-$pkg" dpkg-deb -x "$deb" "$root.tmp"
	done
	sync -f "$root.tmp"
	mv "$root.tmp" "$root"
}

run() {
	local tmp
	tmp=$(mktemp -d "$BUILD/arm64.XXXXXX")
	# shellcheck disable=SC2064
	trap "rm -rf $(quoted "$tmp")" EXIT
	cp "$1" "$tmp/tests.tar"
	cp "$2" "$tmp/list"
	cp "$HARNESS/guest/kselftest.sh" "$tmp/"
	ARCH=arm64 VM_MEM=${VM_MEM:-3072} "$HARNESS/initvm.sh" "$tmp" sh ./kselftest.sh tests.tar list
}

case ${1:-} in
libs) [[ $# -eq 1 ]] || die "usage: arm64.sh libs"; libs ;;
run) [[ $# -eq 3 ]] || die "usage: arm64.sh run TAR LIST"; run "$2" "$3" ;;
*) die "usage: arm64.sh libs, or arm64.sh run TAR LIST" ;;
esac
