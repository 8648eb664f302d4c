#!/bin/bash
# kernel.sh - build one kernel: KERNEL=base|patched CONFIG=test|bench|debug|kcsan|rt|16k|64k
# ARCH=x86_64|arm64. The image and its .config go to build/ARCH/KERNEL-CONFIG/.
# KERNEL=mutant is what mutants.sh has made of the patched tree, KERNEL=step a patch of
# step-tests.sh, KERNEL=gcov what coverage.sh measures.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
KERNEL=${KERNEL:-patched}
CONFIG=${CONFIG:-test}
ARCH=${ARCH:-x86_64}
one_of KERNEL base patched mutant step gcov
one_of CONFIG test bench debug kcsan rt 16k 64k
one_of ARCH x86_64 arm64

base_tree() {
	local tree=$BUILD/trees/base commit

	commit=$(git -C "$BUILD/linux" rev-parse 'base^{commit}')
	if [[ ! -e $tree/.git ]]; then
		rm -rf "$tree"
		git -C "$BUILD/linux" worktree prune
		git -C "$BUILD/linux" worktree add -f --detach "$tree" "$commit" >"$LOGDIR/base-tree.log" 2>&1 ||
			{ fail_log base-tree "$LOGDIR/base-tree.log"; exit 1; }
	fi
	# Whatever stopped a checkout half way, or was edited here: base is base.
	if [[ $(git -C "$tree" rev-parse HEAD) != "$commit" ]] || ! git -C "$tree" diff --quiet HEAD --; then
		git -C "$tree" reset -q --hard "$commit"
	fi
}

# The last word on each symbol of the fragments: NAME=value, n for "not set".
wanted() {
	awk -F= '/^CONFIG_/ { if (!($1 in v)) order[n++] = $1; v[$1] = substr($0, length($1) + 2) }
		END { for (i = 0; i < n; i++) print order[i] "=" v[order[i]] }' "$1"
}

# kconfig drops in silence what it does not know and what lacks a dependency.
check_config() {
	local line name value bad=()

	while read -r line; do
		name=${line%%=*}
		value=${line#*=}
		if [[ $value == n ]]; then
			! grep -q "^$name=" "$2" || bad+=("$line")
		else
			grep -qxF "$line" "$2" || bad+=("$line")
		fi
	done < <(wanted "$1")
	[[ ${#bad[@]} -eq 0 ]] ||
		die "$2 does not have what harness/configs asks for (renamed, or a dependency is missing): ${bad[*]}"
}

mkdir -p "$LOGDIR"
groups=(source build)
[[ $ARCH == x86_64 ]] || groups+=(arm64)
"$HARNESS/deps.sh" "${groups[@]}"
"$HARNESS/source.sh"
if [[ $KERNEL == base ]]; then
	(lock tree-base && base_tree)
	src=$BUILD/trees/base
else
	[[ ! -x $HARNESS/compose.sh ]] || "$HARNESS/compose.sh"
	src=$BUILD/linux
	[[ $KERNEL == patched ]] || src=$BUILD/trees/$KERNEL
fi
[[ -e $src/.git ]] || die "$src is missing; make mutants, step-tests or coverage makes it"

# kbuild uses relative paths if O= lies right in the source tree. So all trees
# give the compiler the same command lines, and ccache knows what base and
# patched have in common. git ignores dot files there.
obj=$src/.build-$ARCH-$CONFIG
out=$BUILD/$ARCH/$KERNEL-$CONFIG
name=kernel-$ARCH-$KERNEL-$CONFIG
lock "$name"
need_space "$BUILD" 2500
begin_build "$obj"
mkdir -p "$out"
use_ccache

configs=(base "$ARCH" test)
case $CONFIG in
bench) configs=(base "$ARCH" bench) ;;
debug) configs+=(debug) ;;
esac
# What the series bring along, base and their first patches do not have.
[[ $CONFIG == bench ]] || ! grep -q COW_POLICY_KUNIT_TEST "$src/mm/Kconfig" || configs+=(patched)
[[ $KERNEL != gcov ]] || configs+=(gcov)
[[ ! -e $HARNESS/configs/$ARCH-$CONFIG.config ]] || configs+=("$ARCH-$CONFIG")
for config in "${configs[@]}"; do
	cat "$HARNESS/configs/$config.config"
done >"$obj/all.config"

make=(make -C "$src" "O=$obj" "LOCALVERSION=-$KERNEL-$CONFIG" "KCONFIG_ALLCONFIG=$obj/all.config"
	KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=harness KBUILD_BUILD_HOST=localhost)
image=arch/x86/boot/bzImage
if [[ $ARCH == arm64 ]]; then
	make+=(ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu- "CC=ccache aarch64-linux-gnu-gcc")
	image=arch/arm64/boot/Image
else
	make+=(ARCH=x86_64 "CC=ccache gcc")
fi

run_logged "config-$ARCH-$KERNEL-$CONFIG" "${make[@]}" allnoconfig
check_config "$obj/all.config" "$obj/.config"
# Gone until the build has succeeded: nobody boots the last build by mistake.
rm -f "$out/${image##*/}"
run_logged "$name" "${make[@]}" "-j$JOBS" "${image##*/}"
put_file "$out/.config" <"$obj/.config"
put_file "$out/System.map" <"$obj/System.map"
ln -sfn "$obj" "$out/objects"
put_file "$out/${image##*/}" <"$obj/$image"
say "kernel: $out/${image##*/}"
