#!/bin/bash
# refresh.sh - make refresh: write the commits of build/linux back to series/
# and to the new files that stand whole in this repository.
#
# The commits from the tag `base` to HEAD are cut where the branches named as
# the folders (1-reuse, 2-...) point; what comes after the last one but one
# belongs to the last one. So `git branch 4-name` at HEAD starts a new series.
#
# Before anything is overwritten, the new series/ is composed again and has to
# give the same commits. FORCE=1 overwrites changes of series/ that
# build/linux was not made from.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

# What this repository has of its own; a series cannot add files there.
OWN='series harness results build proposals .ci .git .gitignore README.md Makefile COPYING'

in_tree="git -C ${TREE#"$PWD"/}"

check_tree() {
	local op changes
	git -C "$TREE" rev-parse -q --verify 'base^{commit}' &>/dev/null ||
		die "there is no build/linux yet; make tree makes it"
	if op=$(busy_tree); then
		die "build/linux is in the middle of a $op; finish it ($in_tree ${op%% *} --continue) or drop it ($in_tree ${op%% *} --abort)"
	fi
	changes=$(tree_changes)
	[[ -z $changes ]] || die "build/linux has changes that are not committed:
$(head -n 10 <<<"$changes")
Commit them where they belong (for an earlier patch: $in_tree commit --fixup=<commit>, then
$in_tree rebase -i --autosquash base), remove them, or add them to .gitignore there."
	git -C "$TREE" merge-base --is-ancestor base HEAD ||
		die "HEAD of build/linux does not stand on the tag base; $in_tree rebase base, or git checkout series"
	[[ -z $(git -C "$TREE" rev-list --merges base..HEAD) ]] ||
		die "there is a merge between base and HEAD in build/linux; a series is linear: $in_tree rebase base"
	[[ -n $(git -C "$TREE" rev-list base..HEAD) ]] ||
		die "build/linux has no commits on top of base: nothing to write"
}

check_series_unchanged() {
	local composed
	[[ ! ${FORCE:-} ]] || return 0
	# A refresh that was interrupted has left series/ half written.
	[[ ! ${CONFIG[harness.refreshing]:-} ]] || return 0
	composed=${CONFIG[harness.composed]:-}
	[[ $(series_hash) == "$composed" || ( -z $composed && -z $(series_names) ) ]] ||
		die "series/ or a whole new file has changed since build/linux was made from it; refresh would lose that.
  make tree DISCARD=1      series/ wins; commits of build/linux stay reachable as refs/discarded/<time>
  make refresh FORCE=1     build/linux wins"
}

# ends: "<name> <first parent> <last commit>" of each series.
ends() {
	local names name prev=0 commit commits i
	local -A at position
	# The base has the position 0.
	mapfile -t commits < <(git -C "$TREE" rev-parse 'base^{commit}' && git -C "$TREE" rev-list --reverse base..HEAD)
	for ((i = 0; i < ${#commits[@]}; i++)); do
		position[${commits[i]}]=$i
	done
	while read -r name commit; do
		[[ ! $name =~ ^[0-9]+-[-a-z0-9]+$ ]] || at[$name]=$commit
	done < <(git -C "$TREE" for-each-ref --format='%(refname:short) %(objectname)' 'refs/heads/[0-9]*-*')
	mapfile -t names < <({
		series_names
		((${#at[@]} == 0)) || printf '%s\n' "${!at[@]}"
	} | sort -uV)
	((${#names[@]})) || die "to which series do the commits belong? $in_tree branch 1-<name>"
	for ((i = 0; i < ${#names[@]}; i++)); do
		name=${names[i]}
		if ((i == ${#names[@]} - 1)); then
			at[$name]=${commits[-1]}
		fi
		commit=${at[$name]:-}
		[[ $commit ]] ||
			die "where does series $name end? $in_tree branch $name <its last commit> (or git rm -r series/$name if it is gone)"
		[[ ${position[$commit]:-} ]] ||
			die "the branch $name of build/linux is not in the history of HEAD; point it to the last commit of this series: $in_tree branch -f $name <commit>"
		((position[$commit] >= prev)) ||
			die "the branch $name of build/linux is before the end of the previous series; $in_tree branch -f $name <commit>"
		((position[$commit] > prev)) ||
			die "the series $name has no commits left; remove it: $in_tree branch -D $name; git rm -r series/$name"
		printf '%s %s %s\n' "$name" "${commits[prev]}" "$commit"
		prev=${position[$commit]}
	done
}

# The same commits with the neutral author, as compose makes them.
# Writes "<old commit> <new commit>" lines to $tmp/map.
normalize() {
	local base work=$tmp/normalize commit commits=() tree date text
	mkdir "$work"
	base=$(git -C "$TREE" rev-parse 'base^{commit}')
	marks=0
	while read -r commit && read -r tree && read -r date && IFS= read -r -d '' text; do
		commits+=("$commit")
		commit_head "$base" "$date" "$text"
		printf 'M 040000 %s ""\n' "$tree"
	done < <(git -C "$TREE" log -z --reverse --format='%H%n%T%n%aD%n%B' --encoding=UTF-8 "$base..HEAD") >"$work/stream"
	import_commits
	printf '%s\n' "${commits[@]}" | paste -d' ' - <(cut -d' ' -f2 "$work/marks") >"$tmp/map"
}

# A file that the series add and that is there at the end stands whole in the
# repository: "<commit that adds it> <path>".
whole_files() {
	local file commit
	local -A added
	# The newest first, which is the one that counts.
	while read -r commit file; do
		[[ ${added[$file]:-} ]] || added[$file]=$commit
	done < <(tree_git log --no-renames --diff-filter=A --format='commit %H' --name-only "base..$last" |
		awk '/^commit / { c = $2; next } NF { print c, $0 }')
	while read -r file; do
		[[ $file != *[[:space:]\"\\]* ]] || die "$file: file names with spaces or quotes cannot be in a series"
		[[ " $OWN " != *" ${file%%/*} "* ]] ||
			die "$file: this repository has a ${file%%/*} of its own, the series cannot add one"
		commit=${added[$file]:-}
		[[ -n $commit ]] || die "$file: no commit adds it as a file (it replaces something of another kind); use another name"
		printf '%s %s\n' "$commit" "$file"
	done < <(tree_git diff --no-renames --diff-filter=A --name-only base "$last")
}

# cover_letter NAME FROM TO COUNT FILE, for write_series: the text as it is, and below it
# what git says of the patches. $prefix is what stands in the brackets of the Subject:.
cover_letter() {
	local name=$1 from=$2 to=$3 count=$4 old=$ROOT/series/$1/$COVER subject

	if [[ -f $old ]]; then
		cat "$old"
	else
		printf 'From %040d Mon Sep 17 00:00:00 2001\nFrom: %s\nDate: %s\nSubject: [PATCH 0/%d] *** SUBJECT HERE ***\n\n*** BLURB HERE ***\n\n' \
			0 "$AUTHOR" "$(git -C "$TREE" log -1 --format=%aD "$to")" "$count"
	fi | awk -v author="$AUTHOR_NAME" -v count="$count" '
		# The text is kept; what git made, from the list of patches on, is made anew.
		index($0, author " (") == 1 && /\([0-9]+\):$/ { exit }
		!body && /^Subject: \[/ { sub(/ 0+\/[0-9]+\]/, " 0/" count "]") }
		/^$/ { body = 1; blank++; next }
		{ for (; blank; blank--) print ""; print }
		END { print "" }' >"$5"
	subject=$(grep -m 1 '^Subject: ' "$5") || true
	[[ $subject =~ ^Subject:\ \[(.*PATCH.*)\ 0/$count\] ]] ||
		die "series/$name/$COVER: the Subject: must begin with [PATCH 0/$count], [RFC PATCH v2 0/$count] or the like"
	prefix=${BASH_REMATCH[1]}
	{
		printf '%s (%d):\n' "$AUTHOR_NAME" "$count"
		git -C "$TREE" log --reverse --format='  %s' "$from..$to"
		printf '\n'
		tree_git diff --no-renames --stat=72 --summary "$from" "$to"
		printf '\n'
	} >>"$5"
}

write_series() {
	local name=$1 from=$2 to=$3 out=$tmp/root/series/$1 prefix commits patches patch
	mkdir -p "$out"
	mapfile -t commits < <(git -C "$TREE" rev-list --reverse "$from..$to")
	cover_letter "$name" "$from" "$to" "${#commits[@]}" "$out/$COVER"
	tree_git format-patch -q -o "$tmp/mails/$name" -n --zero-commit --no-signature --no-renames --binary \
		--no-notes --no-base --no-thread --no-attach --no-cover-letter --no-signoff \
		--subject-prefix="$prefix" "$from..$to"
	patches=("$tmp/mails/$name"/*.patch)
	for patch in "${patches[@]}"; do
		[[ -s $patch ]] || die "${patch##*/}: this commit of build/linux changes nothing; drop it"
	done
	without_files
}

# without_files, for write_series: $out gets the mails less the whole files, and the list
# of the mails with these files behind each.
without_files() {
	awk -v commits="${commits[*]}" -v out="$out" '
		BEGIN { split(commits, commit, " ") }
		FNR == NR && FILENAME == ARGV[1] { files[$1] = files[$1] " " $2; next }
		FNR == 1 {
			if (n) close(mail)
			whole = files[commit[++n]] " "
			name = FILENAME
			sub(/.*\//, "", name)
			mail = out "/" name
			print name (whole == " " ? "" : " " substr(whole, 1, length(whole) - 1)) >(out "/series")
			skip = 0
		}
		/^diff --git / { skip = index(whole, " " substr($3, 3) " ") }
		!skip { print >mail }' "$tmp/whole" "${patches[@]}"
}

# Is series/ as written the same as the commits? Composing it must give them.
verify() {
	local subject
	mkdir "$tmp/verify"
	(
		SRC=$tmp/root
		compose base "$git_dir" "$tmp/verify"
		printf '%s\n' "$COMPOSED" >"$tmp/composed"
	) || die "the series as written cannot be composed again, see above; nothing was changed"
	[[ $(<"$tmp/composed") != "$last" ]] || return 0
	git -C "$TREE" log --reverse --format=%T%n%B "base..$last" >"$tmp/want"
	git -C "$TREE" log --reverse --format=%T%n%B "base..$(<"$tmp/composed")" >"$tmp/got"
	subject=$(diff -u "$tmp/want" "$tmp/got" | tail -n +3 | head -n 20) || true
	die "a commit of build/linux does not survive as a mail; nothing was changed. A changelog must not have a
line that is --- or starts with diff -, From: or Index:. In build/linux (-) and what comes back (+):
$subject"
}

# changed_files: those of $tmp/root that are not the same in the repository.
changed_files() {
	local file
	{
		(cd "$tmp/root" && find . -type f -printf '%P\0' | xargs -0 sha256sum) >"$tmp/sums"
		{ (cd "$ROOT" && sha256sum --check --quiet "$tmp/sums" 2>/dev/null) || true; } |
			sed -n 's/: FAILED\( open or read\)\?$//p'
		while read -r file; do
			[[ ! -L $tmp/root/$file && ! -L $ROOT/$file ]] || say "$file"
			[[ ! -x $tmp/root/$file || -x $ROOT/$file ]] || say "$file"
			[[ -x $tmp/root/$file || ! -x $ROOT/$file ]] || say "$file"
		done < <(cd "$tmp/root" && find . \( -type f -o -type l \) -printf '%P\n')
	} | sort -u
}

# install: bring $tmp/root over the repository.
install_files() {
	local old new file dir changed=()
	old=$(series_lines | sed 's/^[^ ]* *//' | tr ' ' '\n' | sed '/^$/d' | sort -u)
	new=$(cut -d' ' -f2 "$tmp/whole" | sort -u)
	put_config harness.refreshing 1
	mapfile -t changed < <(changed_files)
	if ((${#changed[@]})); then
		(cd "$ROOT" && rm -f -- "${changed[@]}")
		(cd "$tmp/root" && cp -P --preserve=mode --parents -- "${changed[@]}" "$ROOT")
	fi
	for dir in "$tmp/root/series"/*/; do
		dir=${dir%/}
		dir=series/${dir##*/}
		for file in "$ROOT/$dir"/*.patch; do
			[[ -e $tmp/root/$dir/${file##*/} ]] || rm -f "$file"
		done
	done
	comm -23 <(printf '%s\n' "$old") <(printf '%s\n' "$new") | while read -r file; do
		[[ -n $file ]] || continue
		rm -f "$ROOT/$file"
		dir=$(dirname "$file")
		(cd "$ROOT" && rmdir -p --ignore-fail-on-non-empty "$dir" 2>/dev/null) || true
	done
}

lock tree
check_tree
read_config
check_series_unchanged
git_dir=$(git -C "$TREE" rev-parse --absolute-git-dir)
tmp=$(mktemp -d "$BUILD/refresh.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

ends >"$tmp/ends"
normalize
last=$(awk 'END { print $2 }' "$tmp/map")
whole_files >"$tmp/whole"

mkdir -p "$tmp/root/series"
declare -A new_commit
while read -r from to; do
	new_commit[$from]=$to
done <"$tmp/map"
while read -r name from to; do
	write_series "$name" "${new_commit[$from]:-base}" "${new_commit[$to]}"
done <"$tmp/ends"
# The tree's content, not its working copy: no filter, the mode as committed.
if [[ -s $tmp/whole ]]; then
	cut -d' ' -f2 "$tmp/whole" | tr '\n' '\0' |
		xargs -0 git -C "$TREE" -c tar.umask=022 archive --format=tar "$last" -- | tar -xf - -C "$tmp/root"
fi
verify
install_files

branch=$(git -C "$TREE" symbolic-ref -q HEAD || true)
while read -r name from to; do
	[[ $branch == "refs/heads/$name" ]] || git -C "$TREE" branch -q -f --no-track "$name" "$to"
	say "series/$name: $(wc -l <"$ROOT/series/$name/series") patches"
done <"$tmp/ends"
record_state "$(series_hash)" "$(git -C "$TREE" rev-parse HEAD)" "$(cut -d' ' -f1 "$tmp/ends" | tr '\n' ' ')"
git -C "$TREE" config --unset harness.refreshing || true
