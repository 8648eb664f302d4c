#!/bin/bash
# deps.sh GROUP... - install the packages that a group of targets needs.
#
# As root with apt; anybody else is told the exact command. It does nothing, and
# quickly, when all is there.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

packages() {
	case $1 in
	source) echo apt git xz-utils debian-archive-keyring ca-certificates ;;
	build) echo gcc make libc6-dev flex bison bc perl python3 rsync cpio kmod \
		libelf-dev xz-utils git ccache libnuma-dev libcap-dev liburing-dev ;;
	vm) echo qemu-system-x86 udev busybox-static util-linux procps kmod perl-base \
		iproute2 e2fsprogs python3 python3-argcomplete python3-requests python3-packaging virtme-ng ;;
	lint) echo git perl python3 python3-ply python3-git codespell shellcheck sparse ;;
	arm64) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-system-arm cpio ;;
	bench) echo qemu-system-x86 busybox-static cpio jq gnuplot-nox ;;
	demo) echo redis-tools gcc libc6-dev jq gnuplot-nox ;;
	kunit) echo gcc make libc6-dev flex bison bc perl python3 git ;;
	send) echo git git-email libmailtools-perl ;;
	docs) echo git make python3 python3-sphinx ;;
	clang) echo clang-19 ;;
	cocci) echo coccinelle ocaml-findlib ocaml ;;
	*) die "$1: unknown group; choose from: source build vm lint arm64 bench demo kunit send docs clang cocci" ;;
	esac
}

is_installed() {
	# gnuplot-qt and -x11 plot as well as -nox does.
	case $1 in
	gnuplot-nox) command -v gnuplot >/dev/null && return ;;
	esac
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# bookworm has no virtme-ng, and trixie's package works there.
install_virtme() {
	local deb

	"$HARNESS/source.sh" virtme-ng
	deb=$(echo "$CACHE"/virtme-ng_*.deb)
	run_logged deps-virtme-ng apt-get install -y --no-install-recommends "$deb"
}

[[ $# -gt 0 ]] || die "usage: deps.sh GROUP..."
command -v dpkg-query >/dev/null ||
	die "this is no Debian or derivative; install by hand what stands in $0 for: $*"

missing=()
for group; do
	list=$(packages "$group")
	for pkg in $list; do
		is_installed "$pkg" || missing+=("$pkg")
	done
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)

# The package of trixie is fetched with a private apt configuration, see source.sh.
virtme=
for i in "${!missing[@]}"; do
	[[ ${missing[i]} == virtme-ng ]] || continue
	if [[ -z $(apt-cache madison virtme-ng 2>/dev/null) ]]; then
		virtme=1
		unset 'missing[i]'
	fi
done
if [[ $virtme ]]; then
	for pkg in $(packages source); do
		is_installed "$pkg" || missing+=("$pkg")
	done
fi

if [[ $(id -u) -ne 0 ]]; then
	{
		say "These packages are needed, and only root can install them:"
		[[ ${#missing[@]} -eq 0 ]] ||
			say "  sudo apt-get install --no-install-recommends ${missing[*]}"
		if [[ $virtme ]]; then
			"$HARNESS/source.sh" virtme-ng >/dev/null
			say "  sudo apt-get install --no-install-recommends $(echo "$CACHE"/virtme-ng_*.deb)"
		fi
	} >&2
	exit 1
fi

export DEBIAN_FRONTEND=noninteractive
lock apt
if [[ ${#missing[@]} -gt 0 ]]; then
	say "installing: ${missing[*]}"
	apt-get install -s --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
		run_logged apt-update apt-get update
	run_logged apt-install apt-get install -y --no-install-recommends "${missing[@]}"
fi
[[ -z $virtme ]] || install_virtme
