#!/bin/bash
# apply.sh - make apply LINUX=<dir>: the series on top of HEAD of a tree of
# one's own, as the branch cow-series (BRANCH= names another).
#
# It is done in a worktree of its own: what is checked out in LINUX stays as it
# is. When a patch conflicts, it is named, with the file and the first hunk that does
# not fit, and nothing is left.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
# shellcheck source=harness/base.env
. "$HARNESS/base.env"
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

# hunk MAIL FILE [LINE]: the hunk for FILE that is for LINE, or else the one that has
# most of the lines on stdin.
hunk() {
	awk -v f="$2" -v line="${3:-}" '
		given { if ($0 ~ /[[:alnum:]]/) wanted[$0] = 1; next }
		/^diff --git / { on = $0 == "diff --git a/" f " b/" f; in_hunk = 0 }
		on && /^@@ / {
			header[++n] = $0
			in_hunk = 1
			split($0, part, /[-+, ]+/)
			if (line != "" && part[2] == line) best = n
			next
		}
		in_hunk && substr($0, 2) in wanted { hits[n]++ }
		END {
			for (i = 1; i <= n && line == ""; i++)
				if (!best || hits[i] > hits[best]) best = i
			if (best) print "hunk " best ": " header[best]
		}' given=1 - given= "$1"
}

# missing_lines MAIL FILE HEADER: what the hunk expects and the file does not have.
missing_lines() {
	awk -v f="$2" -v header="$3" '
		given { there[$0] = 1; next }
		/^diff --git / { on = $0 == "diff --git a/" f " b/" f; in_hunk = 0 }
		on && /^@@ / { in_hunk = $0 == header; next }
		in_hunk && /^[ -]/ && !(substr($0, 2) in there) && n++ < 3 { print "  not in " f ": " substr($0, 2) }
		END { if (!n) print "  its lines are in " f ", but not one after the other" }' given=1 "$tmp/linux/$2" given= "$1"
}

# explain MAIL: why git am stopped at it, with file, line and hunk.
explain() {
	local mail=$1 file line err header
	file=$(git -C "$tmp/linux" diff --name-only --diff-filter=U | head -n 1)
	if [[ $file ]] && line=$(grep -nm 1 '^<<<<<<< ' "$tmp/linux/$file" 2>/dev/null); then
		# It was merged; what the patch wants stands in the conflict.
		say "$file, line ${line%%:*} (with the patches before it), conflicts with"
		sed -n '/^=======$/,/^>>>>>>> /p; /^>>>>>>> /q' "$tmp/linux/$file" | sed '1d;$d' | hunk "$mail" "$file"
		return
	fi
	git -C "$tmp/linux" am --abort &>/dev/null || true
	err=$(git -C "$tmp/linux" apply --check "$mail" 2>&1) || true
	if [[ ! $err ]]; then
		cat "$tmp/am"
		return
	fi
	IFS=: read -r file line < <(sed -n 's/^error: patch failed: //p' <<<"$err" | head -n 1) || true
	if [[ ${line:-} ]]; then
		header=$(hunk "$mail" "$file" "$line" </dev/null)
		say "$file, line $line, $header"
		missing_lines "$mail" "$file" "${header#hunk *: }"
	elif file=$(sed -nE 's/^error: (.*): (No such file or directory|does not exist in index)$/\1/p' <<<"$err" | grep -m 1 .); then
		say "there is no $file, which the patch changes ($(hunk "$mail" "$file" </dev/null))"
		git -C "$tmp/linux" ls-files -- ":(glob)**/${file##*/}" | head -n 5 | sed 's/^/  of that name: /'
	else
		sed -n 's/^error: //p' <<<"$err" | head -n 5
	fi
	! grep -q 'sha1 information is lacking' "$tmp/am" ||
		say "git cannot merge, as this tree has not the files of Linux $BASE_VERSION: make tree && git -C $LINUX fetch --no-tags $TREE base"
}

lines=$(series_lines)
count=0
while read -r mail _; do
	[[ ! ${SERIES:-} || ${mail%/*} == "$SERIES" ]] || continue
	if ! git -C "$tmp/linux" -c core.hooksPath=/dev/null -c commit.gpgSign=false am -q --3way "$tmp/mails/$mail" &>"$tmp/am"; then
		why=$(explain "$tmp/mails/$mail")
		die "series/$mail does not apply to $(git -C "$LINUX" log -1 --format='%h ("%s")'), after $count patches that did:
$why
$LINUX is as it was. To solve it by hand: git -C $LINUX switch -c $BRANCH && make -s mbox${SERIES:+ SERIES=$SERIES} | git -C $LINUX am --3way"
	fi
	count=$((count + 1))
done <<<"$lines"

git -C "$LINUX" branch "$BRANCH" "$(git -C "$tmp/linux" rev-parse HEAD)"
say "$count patches applied; they are the branch $BRANCH of $LINUX"
