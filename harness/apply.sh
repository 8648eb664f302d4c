#!/bin/bash
# apply.sh - make apply LINUX=<dir>: the series on top of HEAD of a tree of
# one's own, as the branch cow-series (BRANCH= names another).
#
# It is done in a worktree of its own: what is checked out in LINUX stays as it
# is. When a patch conflicts, the first one is named, and nothing is left.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

BRANCH=${BRANCH:-cow-series}
[[ ${LINUX:-} ]] || die "which tree? make apply LINUX=~/linux"
[[ -d $LINUX ]] || die "LINUX=$LINUX: no such directory"
git -C "$LINUX" rev-parse -q --verify 'HEAD^{commit}' &>/dev/null ||
	die "LINUX=$LINUX: not a git tree with a commit; in an unpacked tarball, git init && git add -A && git commit makes one"
[[ $(git -C "$LINUX" rev-parse --show-toplevel) == "$(cd "$LINUX" && pwd -P)" ]] ||
	die "LINUX=$LINUX: not the top of its git tree"
git check-ref-format "refs/heads/$BRANCH" || die "BRANCH=$BRANCH: not a name for a branch"
! git -C "$LINUX" rev-parse -q --verify "refs/heads/$BRANCH" >/dev/null ||
	die "$LINUX has a branch $BRANCH already: remove it (git -C $LINUX branch -D $BRANCH), or give another name with BRANCH="

mkdir -p "$BUILD"
tmp=$(mktemp -d "$BUILD/apply.XXXXXX")
cleanup() {
	git -C "$LINUX" worktree remove --force "$tmp/linux" 2>/dev/null || true
	rm -rf "$tmp"
	git -C "$LINUX" worktree prune
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# With DIR, the mails are without what lets git am pass over the cover letters.
DIR=$tmp/mails "$HARNESS/mbox.sh"
git -C "$LINUX" worktree add -q --detach --no-checkout "$tmp/linux" HEAD || die "cannot make a worktree of $LINUX"
# Only the files of the patches are checked out, not 90,000.
sed -n 's,^diff --git a/.* b/,,p' "$tmp/mails"/*/*.patch | sort -u >"$tmp/files"
(
	cd "$tmp/linux"
	git reset -q --mixed HEAD >/dev/null
	git ls-files -z | git update-index -z --skip-worktree --stdin
	xargs -d '\n' git ls-files -z -- <"$tmp/files"
) >"$tmp/present"
(
	cd "$tmp/linux"
	git update-index -z --no-skip-worktree --stdin <"$tmp/present"
	git checkout-index -q -u -z --stdin <"$tmp/present"
)
export GIT_COMMITTER_NAME=${GIT_COMMITTER_NAME:-$(git -C "$LINUX" config user.name || say "$AUTHOR_NAME")}
export GIT_COMMITTER_EMAIL=${GIT_COMMITTER_EMAIL:-$(git -C "$LINUX" config user.email || say "$AUTHOR_EMAIL")}

lines=$(series_lines)
count=0
while read -r mail _; do
	[[ ! ${SERIES:-} || ${mail%/*} == "$SERIES" ]] || continue
	if ! git -C "$tmp/linux" -c core.hooksPath=/dev/null -c commit.gpgSign=false am -q --3way "$tmp/mails/$mail" &>"$tmp/am"; then
		# What did not apply is told by git apply, without its fall-back.
		git -C "$tmp/linux" am --abort &>/dev/null || true
		err=$(git -C "$tmp/linux" apply --check "$tmp/mails/$mail" 2>&1) || true
		[[ $err ]] || err=$(<"$tmp/am")
		die "series/$mail does not apply to $(git -C "$LINUX" log -1 --format='%h ("%s")'), after $count patches that did:
$(explain_apply "$tmp/mails/$mail" "$err")
$LINUX is as it was. To solve it by hand: git -C $LINUX switch -c $BRANCH && make -s mbox | git -C $LINUX am --3way"
	fi
	count=$((count + 1))
done <<<"$lines"

git -C "$LINUX" branch "$BRANCH" "$(git -C "$tmp/linux" rev-parse HEAD)"
say "$count patches applied; they are the branch $BRANCH of $LINUX"
