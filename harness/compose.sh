#!/bin/bash
# compose.sh - make tree: build/linux is the base with the series as commits.
#
# The branch `series` has all of them; a branch named as its folder (1-reuse)
# is at the last commit of each series, and git rebase moves these along.
# Nothing is done when build/linux is what series/ says, or is that plus work
# of one's own. DISCARD=1 drops such work (its commits stay reachable as
# refs/discarded/<time>).

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

"$HARNESS/source.sh"
lock tree

read_config
put_config user.name "$AUTHOR_NAME"
put_config user.email "$AUTHOR_EMAIL"
# A rebase takes the ends of the series along.
put_config rebase.updateRefs true

[[ ! ${CONFIG[harness.refreshing]:-} ]] ||
	die "make refresh was interrupted and series/ is half written; run make refresh again"

hash=$(series_hash)
head=$(git -C "$TREE" rev-parse HEAD)
was_hash=${CONFIG[harness.composed]:-}
was_head=${CONFIG[harness.head]:-$(git -C "$TREE" rev-parse 'base^{commit}')}
changes=$(tree_changes)

work=
[[ -z $changes ]] || work="files that are not committed:
$(head -n 5 <<<"$changes")"
[[ $head == "$was_head" || $head == "${CONFIG[harness.next]:-}" ]] || work="commits that series/ does not have${work:+, and $work}"
if op=$(busy_tree); then
	work="a $op under way"
fi

if [[ $hash == "$was_hash" && ! ${DISCARD:-} ]]; then
	[[ -z $work ]] ||
		warn "notice: build/linux has $work
notice: they are built, but are not in series/ (make refresh writes commits there)"
	exit 0
fi

if [[ -n $work && ! ${DISCARD:-} ]]; then
	die "series/ has changed since build/linux was made from it, and build/linux has $work
Keep one of the two:
  make tree DISCARD=1      series/ wins; commits of build/linux stay reachable as refs/discarded/<time>
  make refresh FORCE=1     build/linux wins, once all is committed there; series/ is overwritten"
fi

tmp=$(mktemp -d "$BUILD/compose.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
git_dir=$(git -C "$TREE" rev-parse --absolute-git-dir)
compose base "$git_dir" "$tmp"

if [[ -n $work ]]; then
	stamp=$(date -u +%Y%m%d-%H%M%S)
	if [[ -n $changes && ! $(busy_tree) ]]; then
		tree_git stash push -q --include-untracked -m discarded
		git -C "$TREE" update-ref "refs/discarded/$stamp-files" 'stash@{0}'
		tree_git stash drop -q
	fi
	for op in rebase am merge cherry-pick revert; do
		[[ ! $(busy_tree) ]] || tree_git "$op" --quit &>/dev/null || true
	done
	rm -f "$git_dir/MERGE_HEAD"
	git -C "$TREE" update-ref "refs/discarded/$stamp" HEAD
	# In the middle of a rebase, the branch is what the rebase began with.
	! git -C "$TREE" rev-parse -q --verify refs/heads/series >/dev/null ||
		git -C "$TREE" update-ref "refs/discarded/$stamp-series" refs/heads/series
	tree_git reset -q --hard HEAD
	warn "build/linux: what was there is kept as refs/discarded/$stamp*"
fi

# Not below the feet of a build.
lock tree-patched
# An interruption from here on is healed by the next run: the tree is clean and
# at the recorded commit, or at the one that is recorded last.
put_config harness.next "$COMPOSED"
# Only the files that differ are touched, so that little is compiled again.
tree_git checkout -q --no-track -B series "$COMPOSED"
for name in ${CONFIG[harness.series]:-}; do
	[[ ${ENDS[$name]:-} ]] || git -C "$TREE" branch -q -D "$name" 2>/dev/null || true
done
for name in "${!ENDS[@]}"; do
	git -C "$TREE" branch -q -f --no-track "$name" "${ENDS[$name]}"
done
record_state "$hash" "$COMPOSED" "${!ENDS[*]}"
say "build/linux: $(git -C "$TREE" rev-list --count "base..$COMPOSED") patches on $(git -C "$TREE" log -1 --format=%s base)"
