#!/bin/bash
# source.sh - make build/linux, a git tree in which the tag `base` is the kernel
# that the series are for.
# source.sh PACKAGE[:arm64]... - only fetch these packages into build/cache; those
# for arm64 are of the machine's own release.
#
# The kernel is Debian's linux-source package of trixie-backports. apt fetches
# and verifies it with a private configuration: the mirror is the one which the
# machine uses already, the system's configuration and lists stay as they are.
# DEBIAN_MIRROR= names another mirror. LINUX= takes HEAD of another tree instead.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

# shellcheck source=harness/base.env
. "$HARNESS/base.env"
VERSION=$BASE_VERSION
PACKAGE=linux-source-${VERSION%.*}
TREE=$BUILD/linux
APT=$CACHE/apt
# One commit ID everywhere: nothing of the user's git configuration, no clock.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME='Linux' GIT_AUTHOR_EMAIL='linux@base.invalid'
export GIT_COMMITTER_NAME='Linux' GIT_COMMITTER_EMAIL='linux@base.invalid'
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'

# shellcheck source=/dev/null
codename() { (. /etc/os-release && echo "${VERSION_CODENAME:-sid}"); }

mirror() {
	local uri suite suites

	if [[ ${DEBIAN_MIRROR:-} ]]; then
		say "$DEBIAN_MIRROR"
		return
	fi
	suites=" $(codename) oldoldstable oldstable stable testing unstable sid trixie "
	# shellcheck disable=SC2016
	while IFS='|' read -r uri suite; do
		if [[ $suites == *" $suite "* ]]; then
			say "${uri%/}"
			return
		fi
	done < <(apt-get indextargets 'Created-By: Packages' 'Component: main' --format '$(REPO_URI)|$(RELEASE)')
	die "no Debian mirror found in the apt sources of this machine; name one with DEBIAN_MIRROR=, or a kernel tree with LINUX="
}

apt_conf() {
	local key=/usr/share/keyrings/debian-archive-keyring.gpg suite uri

	[[ -e $key ]] || die "$key is missing; install debian-archive-keyring"
	uri=$(mirror)
	mkdir -p "$APT/lists/partial" "$APT/archives/partial" "$APT/empty"
	: >"$APT/status"
	{
		for suite in trixie trixie-backports; do
			say "deb [arch=$(dpkg --print-architecture) signed-by=$key] $uri $suite main"
		done
		if [[ ${1:-} == arm64 ]]; then
			say "deb [arch=arm64 signed-by=$key] $uri $(codename) main"
		fi
	} | put_file "$APT/sources.list"
	put_file "$APT/apt.conf" <<-CONF
		Dir::State "$APT";
		Dir::State::lists "$APT/lists";
		Dir::State::status "$APT/status";
		Dir::Cache "$APT";
		Dir::Etc::sourcelist "$APT/sources.list";
		Dir::Etc::sourceparts "$APT/empty";
		Dir::Etc::preferences "$APT/none";
		Dir::Etc::preferencesparts "$APT/empty";
		APT::Architectures { "$(dpkg --print-architecture)"; "arm64"; };
		APT::Sandbox::User "";
	CONF
}

apt_private() { "$1" -c "$APT/apt.conf" "${@:2}"; }

# fetch PACKAGE[:ARCH][=VERSION]: into build/cache, there only when apt has
# verified all of it.
fetch() {
	local tmp=$CACHE/download.tmp name=${1%%[=:]*} deb

	rm -rf "$tmp"
	need_space "$CACHE" 400
	mkdir -p "$tmp"
	(cd "$tmp" && run_logged "fetch-$name" apt-get -c "$APT/apt.conf" download "$1")
	deb=$(echo "$tmp"/*.deb)
	sync "$deb"
	rm -f "$CACHE/${name}"_*_"${deb##*_}"
	mv "$deb" "$CACHE/"
	rmdir "$tmp"
}

# The newest version of the package that has the wanted upstream version; else
# the newest of all.
pick_version() {
	local all
	all=$(apt_private apt-cache madison "$PACKAGE" | awk '{ print $3 }' | sort -uVr)
	[[ $all ]] || die "$PACKAGE is not in trixie-backports of $(mirror); give a kernel tree with LINUX="
	grep -m 1 "^${VERSION//./\\.}-" <<<"$all" || head -n 1 <<<"$all"
}

commit_dir() {
	# The threshold makes git write one pack at once, not 90,000 files.
	git -c core.autocrlf=false -c core.bigFileThreshold=1 -c core.compression=1 add -Af . &&
		git commit -q --no-gpg-sign -m "$1"
}

import_deb() {
	local deb=$1 tmp=$BUILD/linux.tmp tar

	# What a full disk has stopped counts as free.
	rm -rf "$tmp"
	need_space "$BUILD" 6000
	mkdir -p "$tmp/deb" "$tmp/linux"
	run_logged unpack-deb dpkg-deb -x "$deb" "$tmp/deb"
	tar=$(ls "$tmp"/deb/usr/src/linux-source-*.tar.*)
	run_logged unpack-source tar -C "$tmp/linux" --strip-components=1 -xf "$tar"
	rm -rf "$tmp/deb"
	# Debian's addition ignores all new files, so that git add would silently
	# leave out what a series adds.
	sed -zi 's/\n*#\n# Debian packaging.*/\n/' "$tmp/linux/.gitignore"
	(
		cd "$tmp/linux" || exit
		git init -q -b base-deb --object-format=sha1
		run_logged import-source commit_dir "Linux $(make -s kernelversion), package $(basename "$deb" _all.deb)"
		git update-ref refs/harness/deb HEAD
		git checkout -q --detach
		git branch -qD base-deb
		git tag base
		git config harness.deb "$(basename "$deb")"
		git config harness.base deb
	)
	[[ ! -e $TREE ]] || die "$TREE appeared meanwhile"
	sync -f "$tmp"
	mv "$tmp/linux" "$TREE"
	rmdir "$tmp"
}

find_deb() {
	find "$CACHE" -maxdepth 1 -name "${PACKAGE}_*.deb" | tail -n 1
}

# Point the tag at COMMIT. compose.sh sees that the series stand on another base.
set_base() {
	local commit=$1 from=$2
	if [[ $(git -C "$TREE" rev-parse -q --verify 'base^{commit}') != "$commit" ]]; then
		git -C "$TREE" tag -f base "$commit" >/dev/null
		say "build/linux: base is now $(git -C "$TREE" log -1 --format=%s base) ($from)"
	fi
	git -C "$TREE" config harness.base "$from"
}

# No search for deltas: it takes minutes in a tree with loose objects.
UPLOAD='git -c pack.window=0 -c core.compression=1 upload-pack'

base_from_linux() {
	local dir=$1 head

	[[ -d $dir ]] || die "LINUX=$dir: no such directory"
	[[ -f $dir/Kconfig && -f $dir/mm/memory.c ]] || die "LINUX=$dir: not a Linux kernel tree"
	dir=$(cd "$dir" && pwd -P)
	head=$(git -C "$dir" rev-parse -q --verify HEAD) ||
		die "LINUX=$dir: not a git tree with a commit; run git init, git add and git commit in it"
	[[ $(git -C "$dir" rev-parse --show-toplevel) == "$dir" ]] ||
		die "LINUX=$dir: not the top of its git tree"
	[[ $dir != "$(cd "$TREE" 2>/dev/null && pwd -P)" ]] ||
		die "LINUX= must be a tree of your own, not build/linux"
	git -C "$dir" diff-index --quiet HEAD -- ||
		warn "LINUX=$dir has changes that are not committed; they are not used"
	if [[ ! -d $TREE ]]; then
		rm -rf "$BUILD/linux.tmp"
		need_space "$BUILD" 4000
		git init -q --object-format=sha1 "$BUILD/linux.tmp"
		(cd "$BUILD/linux.tmp" && run_logged fetch-linux git fetch -q --no-tags --depth 1 --upload-pack "$UPLOAD" "file://$dir" HEAD &&
			git tag base FETCH_HEAD && git checkout -q --detach base)
		mv "$BUILD/linux.tmp" "$TREE"
	elif ! git -C "$TREE" cat-file -e "$head^{commit}" 2>/dev/null; then
		need_space "$BUILD" 2000
		(cd "$TREE" && run_logged fetch-linux git fetch -q --no-tags --depth 1 --upload-pack "$UPLOAD" "file://$dir" HEAD)
	fi
	set_base "$head" "$dir"
}

base_from_deb() {
	local deb version

	if [[ -d $TREE ]] && git -C "$TREE" rev-parse -q --verify refs/harness/deb >/dev/null; then
		set_base "$(git -C "$TREE" rev-parse refs/harness/deb)" deb
		return
	fi
	[[ ! -d $TREE ]] ||
		die "build/linux was made from LINUX=$(git -C "$TREE" config harness.base); give LINUX= again, or remove build/linux to start from $PACKAGE"
	deb=$(find_deb)
	if [[ -z $deb ]]; then
		apt_conf
		run_logged fetch-lists apt-get -c "$APT/apt.conf" update
		version=$(pick_version)
		[[ $version == "$VERSION"-* ]] ||
			warn "notice: $PACKAGE $VERSION is gone from the mirror, taking $version"
		fetch "$PACKAGE=$version"
		deb=$(find_deb)
	fi
	import_deb "$deb"
}

mkdir -p "$CACHE"
if [[ $# -gt 0 ]]; then
	lock fetch
	for package; do
		pattern="${package%:*}_*.deb"
		[[ $package != *:arm64 ]] || pattern="${package%:*}_*_arm64.deb"
		[[ -z $(find "$CACHE" -maxdepth 1 -name "$pattern") ]] || continue
		"$HARNESS/deps.sh" source
		apt_conf "${package#*:}"
		run_logged fetch-lists apt-get -c "$APT/apt.conf" update
		fetch "$package"
	done
	exit
fi

lock source
"$HARNESS/deps.sh" source
if [[ ${LINUX:-} ]]; then
	base_from_linux "$LINUX"
else
	base_from_deb
fi
