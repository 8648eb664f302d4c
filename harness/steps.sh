#!/bin/bash
# steps.sh - make steps: build each patch of the series by itself, mm/ and all
# that the series touch, and compare the warnings with those of base.
#
#   x86_64   everything on, W=1 and sparse     tiny    allnoconfig
#   arm64    everything on                     no-thp  x86_64 without THP
#   i386     32 bit, PAE, no debugfs            bench   x86_64 without debugging, as distributions have it
#   clang    x86_64 with clang, at the last patch of each series
#
# The object directories are kept from patch to patch, so only what a patch
# changes is compiled. Without W=1 a kernel has no warnings, so base is built
# with the other configs only when one shows up. CONFIGS="x86_64 tiny" picks some;
# FROM= is a commit of build/linux, the patches behind it are built (HEAD~2: the last two).
# FULL=1 links a kernel at each patch (x86_64), which finds what is missing at
# link time but takes hours. QUICK=1, for `make check`: the other configs than x86_64
# are built at the last patch of each series only, bench and clang not at all. And
# after QUICK_SECONDS (600), on a slow machine, x86_64 builds only what the series
# touch, but for the last patches, and says so; and the others are built at the very
# last patch.
# The results are build/report/steps.ktap.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

ALL_CONFIGS='x86_64 tiny no-thp i386 arm64 bench clang'
CONFIGS=${CONFIGS:-$ALL_CONFIGS}
for config in $CONFIGS; do
	# shellcheck disable=SC2086
	one_of config $ALL_CONFIGS
done
case ${FULL:-0} in
0 | '') FULL= ;;
1) ;;
*) die "FULL=$FULL: unknown; choose from: 0 1" ;;
esac

case ${QUICK:-0} in
0 | '') QUICK= ;;
1) ;;
*) die "QUICK=$QUICK: unknown; choose from: 0 1" ;;
esac

"$HARNESS/deps.sh" source build lint
[[ " $CONFIGS " != *' arm64 '* ]] || "$HARNESS/deps.sh" arm64
[[ $QUICK || " $CONFIGS " != *' clang '* ]] || "$HARNESS/deps.sh" clang
"$HARNESS/compose.sh"
lock steps
need_space "$BUILD" 4000
use_ccache
export KBUILD_BUILD_TIMESTAMP=2026-01-01 KBUILD_BUILD_USER=harness KBUILD_BUILD_HOST=localhost

tree=$BUILD/trees/steps
QUICK_SECONDS=${QUICK_SECONDS:-600}
part=
mkdir -p "$LOGDIR" "$REPORT"

# The commits of build/linux as it is, those that are not yet in series/ too.
base=$(git -C "$TREE" rev-parse 'base^{commit}')
from=$(git -C "$TREE" rev-parse -q --verify "${FROM:-base}^{commit}") || die "FROM=$FROM: no commit of build/linux"
git -C "$TREE" merge-base --is-ancestor "$base" "$from" || die "FROM=$FROM: not a patch of the series"
mapfile -t commits < <(git -C "$TREE" rev-list --reverse "$from..HEAD")
((${#commits[@]})) || die "build/linux has no patches on top of ${FROM:-base}"

checkout() {
	if [[ ! -e $tree/.git ]]; then
		rm -rf "$tree"
		git -C "$TREE" worktree prune
		run_logged steps-tree git -C "$TREE" worktree add -f --detach "$tree" "$base"
	fi
	git -C "$tree" reset -q --hard
	git -C "$tree" checkout -q --detach "$1"
}

# fragments CONFIG: of Kconfig.
fragments() {
	case $1 in
	tiny) return ;;
	bench) cat "$HARNESS"/configs/{base,x86_64,bench}.config ;;
	arm64) cat "$HARNESS"/configs/{base,arm64,test,patched}.config ;;
	*) cat "$HARNESS"/configs/{base,x86_64,test,patched}.config ;;
	esac
	case $1 in
	no-thp) echo CONFIG_TRANSPARENT_HUGEPAGE=n ;;
	i386) printf '%s\n' CONFIG_64BIT=n CONFIG_HIGHMEM4G=y CONFIG_X86_PAE=y CONFIG_DEBUG_FS=n ;;
	esac
}

# What of the touched files is compiled, beside mm/.
mapfile -t touched < <(git -C "$TREE" diff --no-renames --name-only "$base" HEAD -- '*.c' |
	grep -vE '^(mm|tools|samples|Documentation)/' || true)
mapfile -t touched_mm < <(git -C "$TREE" diff --no-renames --name-only "$base" HEAD -- 'mm/*.c' |
	grep -v '^mm/tests/' || true)

# Also when HEAD of build/linux is not at a branch.
last_of_series() {
	[[ $1 == "${commits[-1]}" || $(git -C "$TREE" for-each-ref --points-at "$1" refs/heads) ]]
}

too_late() { ((SECONDS > QUICK_SECONDS)); }

# left_out CONFIG COMMIT: is this build left out, by QUICK or always?
left_out() {
	case $1 in
	bench) [[ ! $QUICK ]] || return 0 ;;
	clang)
		[[ $QUICK ]] || ! last_of_series "$2"
		return
		;;
	esac
	[[ $QUICK && $1 != x86_64 && $2 != "${commits[-1]}" ]] && { too_late || ! last_of_series "$2"; }
}

# in_part COMMIT: does QUICK build only a part of mm/?
in_part() {
	[[ $QUICK ]] && too_late && ! last_of_series "$1"
}

# compiled_before CONFIG: since the commit that was last built, and good, nothing
# that is compiled has changed.
compiled_before() {
	[[ ${good[$1]:-} && ! $FULL ]] || return
	git -C "$tree" diff --quiet "${good[$1]}" HEAD -- . ':!tools' ':!Documentation' ':!MAINTAINERS'
}

objects() {
	local file
	if [[ $part ]]; then
		# What is not configured has no object.
		for file in ${touched_mm[@]+"${touched_mm[@]}"}; do
			[[ ! -e $tree/.build-steps-$1/${file%.c}.o ]] || say "${file%.c}.o"
		done
	else
		say mm/
	fi
	[[ $1 != arm64 ]] || say arch/arm64/mm/
	for file in ${touched[@]+"${touched[@]}"}; do
		case $1:$file in
		arm64:arch/arm64/mm/*) continue ;;
		arm64:arch/arm64/*) ;;
		*:arch/x86/*) [[ $1 != arm64 ]] || continue ;;
		*:arch/*) continue ;;
		tiny:*) continue ;;
		esac
		[[ ! -e $tree/$file ]] || say "${file%.c}.o"
	done
}

# build CONFIG LOG [OBJ]
build() {
	local config=$1 log=$2 obj=${3:-.build-steps-$1} make gcc=gcc rc=0 objs
	# kernel-doc is for lint.
	make=(make -C "$tree" "O=$obj" -k -j "$JOBS" -Otarget cmd_checkdoc=)
	case $config in
	# Debian's sparse does not know __typeof_unqual__ and kbuild would do
	# without it, with no more than a notice. The qualifiers are gcc's to check.
	x86_64) make+=(ARCH=x86_64 W=1 C=1 "CHECK=sparse -D__typeof_unqual__=__typeof__") ;;
	i386) make+=(ARCH=i386) ;;
	arm64) make+=(ARCH=arm64 CROSS_COMPILE=aarch64-linux-gnu-) gcc=aarch64-linux-gnu-gcc ;;
	clang) make+=(ARCH=x86_64) gcc=clang-19 ;;
	*) make+=(ARCH=x86_64) ;;
	esac
	# On a fresh machine ccache would only cost time.
	[[ $QUICK ]] || gcc="ccache $gcc"
	make+=("CC=$gcc")
	mapfile -t objs < <(objects "$config")
	[[ ! $FULL || $config != x86_64 ]] || objs=(vmlinux)
	printf '$ %s\n' "$(quoted "${make[@]}" "${objs[@]}")" >"$log"
	# In the log the lines of all rest; here what matters.
	{
		"${make[@]}" "KCONFIG_ALLCONFIG=$tree/.build-steps-$config/all.config" allnoconfig &&
			"${make[@]}" "${objs[@]}"
	} >>"$log" 2>&1 </dev/null || rc=$?
	! grep -q 'sparse is not available' "$log" || rc=1
	return "$rc"
}

# Debian's sparse does not take __builtin_strlen() for a constant, and so complains
# about each MODULE_LICENSE() and its like, which start in column 1.
warnings() {
	{ grep -hE '(warning|error):' "$@" || true; } |
		sed -E '/:[0-9]+:1: error: bad constant expression$/d; s,^(\.\./)+,,; s,:[0-9]+(:[0-9]+)?: ,: ,; s,\b0x[0-9a-f]+,0x...,g; /all\.config:/d' | LC_ALL=C sort -u
}

# The warnings of base, compiled as a whole and apart from the other objects.
known_warnings() {
	local config=$1 now known=$tree/.build-steps-$1/known-$base log=$LOGDIR/steps-$1-0.log
	if [[ ! -e $known ]]; then
		now=$(git -C "$tree" rev-parse HEAD)
		checkout "$base"
		rm -rf "$tree/.build-steps-base"
		mkdir "$tree/.build-steps-base"
		part='' build "$config" "$log" .build-steps-base || true
		warnings "$log" >"$known"
		rm -rf "$tree/.build-steps-base"
		checkout "$now"
	fi
	cat "$known"
}

checkout "$base"
for config in $CONFIGS; do
	obj=$tree/.build-steps-$config
	# As in begin_build: after a power cut the objects are not to be trusted. And
	# without the list of base's warnings, what is compiled would not warn again.
	[[ ! -e $obj/.unfinished && (-e $obj/known-$base || $config != x86_64) ]] || rm -rf "$obj"
	mkdir -p "$obj"
	: >"$obj/.unfinished"
	fragments "$config" >"$obj/all.config.new"
	cmp -s "$obj/all.config.new" "$obj/all.config" || cp "$obj/all.config.new" "$obj/all.config"
done
trap 'rm -f "$tree"/.build-steps-*/.unfinished' EXIT
trap 'exit 130' INT TERM HUP

tmp=$REPORT/steps.ktap.tmp
n=0
declare -A good=()
{
	say "TAP version 13"
	for commit in "$base" "${commits[@]}"; do
		checkout "$commit"
		if [[ $commit == "$base" ]]; then
			subject=base
		else
			subject=$(git -C "$TREE" log -1 --format=%s "$commit")
		fi
		for config in $CONFIGS; do
			[[ $commit != "$base" || $config == x86_64 ]] || continue
			! left_out "$config" "$commit" || continue
			start=$SECONDS
			n=$((n + 1))
			log=$LOGDIR/steps-$config-$(git -C "$TREE" rev-list --count "$base..$commit").log
			known=$tree/.build-steps-$config/known-$base
			if compiled_before "$config"; then
				say "# nothing that is compiled changes"
				say "ok $n $config: $subject"
				continue
			fi
			good[$config]=
			part=
			! in_part "$commit" || part=1
			[[ ! $part ]] || say "# more than $QUICK_SECONDS s: only what the series touch; make steps builds all of mm/"
			if ! build "$config" "$log"; then
				grep -E '(error:|warning:|Error [0-9]|not available)' "$log" | grep -v 'Error 2$' | head -n 20 | sed 's/^/# /' || true
				say "# log: ${log#"$ROOT"/}"
				say "# command: $(sed -n '1s/^..//p' "$log")"
				say "not ok $n $config: $subject"
				continue
			fi
			# Base is not compiled again as a whole when the objects are there.
			[[ $commit != "$base" ]] || LC_ALL=C sort -u -o "$known" <(cat "$known" 2>/dev/null) <(warnings "$log")
			new=$(warnings "$log")
			[[ ! $new ]] || new=$(LC_ALL=C comm -13 <(known_warnings "$config") - <<<"$new")
			if [[ $new ]]; then
				awk 'NR <= 20 { print "# new: " $0 }' <<<"$new"
				say "# log: ${log#"$ROOT"/}, took $((SECONDS - start)) s"
				say "not ok $n $config: $subject"
			else
				say "# compiled $(grep -c '^  CC ' "$log" || true) files with $(warnings "$log" | wc -l) warnings that base has too, took $((SECONDS - start)) s"
				say "ok $n $config: $subject"
				[[ $part ]] || good[$config]=$commit
			fi
		done
	done
	say "1..$n"
} | tee "$tmp"
mv "$tmp" "$REPORT/steps.ktap"
"$HARNESS/report.py" count "$REPORT/steps.ktap"
