#!/bin/bash
# selftests.sh - build the mm selftests of the patched tree for ARCH=x86_64|arm64
# into build/ARCH/kselftest/mm. The same programs run on the base kernel.
#
# KERNEL=step, for step-tests.sh: those of its tree, and only PROGRAMS="name ...", into
# build/ARCH/kselftest-step/mm.
#
# What runs in an initramfs is linked statically: all for arm64, and with PROGRAM=
# that one program, into build/ARCH/kselftest-static/mm.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
ARCH=${ARCH:-x86_64}
one_of ARCH x86_64 arm64

"$HARNESS/deps.sh" source build
"$HARNESS/source.sh"
src=$BUILD/linux
out=$BUILD/$ARCH/kselftest/mm
name=selftests-$ARCH
goals=(all)
if [[ ${KERNEL:-} == step ]]; then
	src=$BUILD/trees/step
	out=$BUILD/$ARCH/kselftest-step/mm
	name+=-step
	goals=()
	for program in ${PROGRAMS:-}; do
		goals+=("$out/$program")
	done
elif [[ -x $HARNESS/compose.sh ]]; then
	"$HARNESS/compose.sh"
fi
lock "selftests"
mm=$src/tools/testing/selftests/mm
headers=$src/.build-$ARCH-headers
if [[ ${PROGRAM:-} ]]; then
	out=$BUILD/$ARCH/kselftest-static/mm
	name=$PROGRAM-$ARCH
	goals=("$out/$PROGRAM")
	[[ -e $mm/$PROGRAM.c ]] || die "PROGRAM=$PROGRAM: no such selftest of mm"
fi
need_space "$BUILD" 500
use_ccache

karch=$ARCH
[[ $ARCH == arm64 ]] || karch=x86
make=(make "ARCH=$ARCH" "CC=ccache gcc")
[[ ! ${PROGRAM:-} ]] || make+=(USERLDFLAGS=-static)
if [[ $ARCH == arm64 ]]; then
	"$HARNESS/deps.sh" arm64
	"$HARNESS/arm64.sh" libs
	libs=$CACHE/arm64/root/usr
	make=(make ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- "CC=ccache aarch64-linux-gnu-gcc"
		"USERCFLAGS=-isystem $libs/include -isystem $libs/include/aarch64-linux-gnu"
		"USERLDFLAGS=-static -L$libs/lib/aarch64-linux-gnu")
fi

begin_build "$out"
mkdir -p "$headers"
run_logged "headers-$ARCH" make -C "$src" "O=$headers" "ARCH=$karch" headers
run_logged "$name" "${make[@]}" -C "$mm" "-j$JOBS" \
	"OUTPUT=$out" "KHDR_INCLUDES=-isystem $headers/usr/include" "${goals[@]}"
[[ ${PROGRAM:-} ]] || cp -p "$mm"/*.sh "$mm/settings" "$out/"
