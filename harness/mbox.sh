#!/bin/bash
# mbox.sh - make mbox: the complete mails on stdout, without a kernel tree.
#   make -s mbox | git am
# SERIES=1-reuse picks one series. SIGNOFF=1 puts the sender, from git's
# configuration, into From: and adds his Signed-off-by:, which is his word on
# Documentation/process/submitting-patches.rst and no tool's.
# DIR=<dir> writes files for git send-email instead, one a mail.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
# shellcheck source=harness/base.env
. "$HARNESS/base.env"
no_args "$@"
need_cmd git awk

names=$(series_names)
lines=$(series_lines)
[[ $names ]] || die "series/ has no series"
if [[ ${SERIES:-} ]]; then
	# shellcheck disable=SC2086
	one_of SERIES $names
fi
case ${SIGNOFF:-0} in
0 | '') SIGNOFF= ;;
1) ;;
*) die "SIGNOFF=$SIGNOFF: unknown; choose from: 0 1" ;;
esac

sender=
if [[ $SIGNOFF ]]; then
	for key in user.name user.email; do
		value=$(git -C "$ROOT" config --get "$key" || true)
		[[ $value ]] ||
			die "SIGNOFF=1 takes your name from git's configuration, and there is no $key: git config --global $key ..."
		sender=${sender:+$sender <$value>}
		sender=${sender:-$value}
	done
	[[ $sender != *"$AUTHOR_EMAIL"* ]] || die "SIGNOFF=1: user.email is the placeholder $AUTHOR_EMAIL; set your own"
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
repo=$tmp/git
git_dir=$repo/.git
clean_git init -q "$repo"
empty_tree=$(clean_git --git-dir="$git_dir" mktree </dev/null)

# header_from NAME-AND-EMAIL: the line as git writes it, encoded where needed.
header_from() {
	local commit mail=${1##*<}
	commit=$(GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=${1% <*} \
		GIT_AUTHOR_EMAIL=${mail%>} \
		GIT_COMMITTER_NAME=$AUTHOR_NAME GIT_COMMITTER_EMAIL=$AUTHOR_EMAIL \
		git --git-dir="$git_dir" commit-tree "$empty_tree" </dev/null)
	clean_git --git-dir="$git_dir" show -s --format=email "$commit" | awk '/^From: / { f = 1 } /^Date: / { exit } f'
}

# whole_diff MAIL: what the mail changes, the new files included, by path.
whole_diff() {
	local mail=$1 states=$tmp/states/$1 tree
	split_mail "$SRC/series/$mail" "$tmp/mail"
	if [[ -s $states ]]; then
		export GIT_INDEX_FILE=$tmp/new-index
		rm -f "$GIT_INDEX_FILE"
		clean_git --git-dir="$git_dir" update-index --add --index-info <"$states"
		tree=$(clean_git --git-dir="$git_dir" write-tree)
		unset GIT_INDEX_FILE
		clean_git --git-dir="$git_dir" diff --no-renames --binary "$empty_tree" "$tree" >>"$tmp/mail.diff"
	fi
	# One file a section, in git's order, which is that of bytes.
	LC_ALL=C awk '
		/^diff --git / { path[++n] = substr($4, 3) }
		{ text[n] = text[n] $0 "\n" }
		END {
			for (i = 1; i <= n; i++) {
				for (j = i; j > 1 && path[order[j - 1]] > path[i]; j--)
					order[j] = order[j - 1]
				order[j] = i
			}
			for (i = 1; i <= n; i++) printf "%s", text[order[i]]
		}' "$tmp/mail.diff"
}

# fix_diffstat HEAD DIFF: HEAD with the diffstat of DIFF. The one in the mail is git's; it
# is made anew where a whole file was edited since.
fix_diffstat() {
	local head=$1 diff=$2 rc=0
	clean_git apply --numstat "$diff" 2>/dev/null | awk '
		FILENAME == "-" { if ($1 != "-") { a += $1; d += $2 } n++; next }
		{ text = text $0 "\n" }
		/^ [0-9]+ files? changed/ {
			found_a = found_d = 0
			for (i = 4; i < NF; i++) {
				if ($(i + 1) ~ /^insertion/) found_a = $i
				if ($(i + 1) ~ /^deletion/) found_d = $i
			}
			same = $1 == n && found_a == a && found_d == d
		}
		END { if (same) printf "%s", text; exit !same }' - "$head" || rc=$?
	((rc)) || return 0
	awk '/^---$/ { exit } { print }' "$head"
	printf -- '---\n'
	clean_git apply --stat --summary "$diff"
	printf '\n'
}

# sign HEAD: the sender for the neutral author; his sign-off behind the tags.
sign() {
	local body
	awk '/^$/ { exit } { print }' "$1" >"$tmp/header"
	if ! grep -q '^Content-Type:' "$tmp/header" && grep -q '[^ -~]' <<<"$sender"; then
		printf '%s\n' 'MIME-Version: 1.0' 'Content-Type: text/plain; charset=UTF-8' \
			'Content-Transfer-Encoding: 8bit' >>"$tmp/header"
	fi
	awk -v from="$from" '
		/^From: / { print from; skip = 1; next }
		skip && /^[ \t]/ { next }
		{ skip = 0; print }' "$tmp/header"
	printf '\n'
	body=$(awk 'b { print } /^$/ { b = 1 }' "$1")
	if [[ $2 == cover ]]; then
		awk -v author="$AUTHOR_NAME" -v sender="${sender%% <*}" '
			index($0, author " (") == 1 { $0 = sender substr($0, length(author) + 1) }
			{ print }' <<<"$body"
		printf '\n'
		return
	fi
	awk '/^---$/ { exit } { print }' <<<"$body" >"$tmp/body"
	clean_git interpret-trailers --no-divider --if-exists addIfDifferent \
		--trailer "Signed-off-by: $sender" "$tmp/body"
	awk '/^---$/ { d = 1 } d' <<<"$body"
	printf '\n'
}

prerequisites=()
emit_cover() {
	local name=$1 head=$tmp/cover.head file=$SRC/series/$1/$COVER
	[[ -f $file ]] || die "series/$name has no $COVER (make refresh makes one)"
	! grep -q '^\*\*\* BLURB HERE\|\*\*\* SUBJECT HERE' "$file" ||
		warn "notice: the text of series/$name/$COVER is still to be written"
	if [[ $SIGNOFF ]]; then
		sign "$file" cover >"$head"
	else
		cat "$file" >"$head"
	fi
	if [[ ! ${DIR:-} ]]; then
		# git am stops at a mail without a patch, with one exception: the
		# folder data that pine wrote into an mbox, known by its author.
		# (And it believes an author in the text only where a --- follows.)
		awk '!b && /^$/ { b = 1; print; print "From: Mail System Internal Data <cover-letter@example.com>"; }
			{ print }' "$head" >"$head.am"
		mv "$head.am" "$head"
	fi
	cat "$head"
	[[ ${DIR:-} ]] || printf -- '---\n'
	printf 'base-commit: %s\n' "$BASE_COMMIT"
	((${#prerequisites[@]} == 0)) || printf 'prerequisite-patch-id: %s\n' "${prerequisites[@]}"
	printf '\n'
}

# begin_mail NAME: what is printed from here on is this mail.
begin_mail() {
	[[ ${DIR:-} ]] || return 0
	[[ -d $DIR/${1%/*} ]] || mkdir -p "$DIR/${1%/*}"
	exec >"$DIR/$1"
}

# add_prerequisite DIFF: the next series stands on it.
add_prerequisite() {
	local id
	clean_git patch-id --stable <"$1" >"$tmp/id"
	read -r id _ <"$tmp/id" || return 0
	prerequisites+=("$id")
}

[[ $BASE_COMMIT =~ ^([0-9a-f]{40}|v[0-9.]+)$ ]] || die "harness/base.env: BASE_COMMIT is not a commit ID"
[[ ! $SIGNOFF ]] || from=$(header_from "$sender")
mkdir "$tmp/states"
new_file_states "$git_dir" "$tmp/states"

current=
while read -r mail _; do
	name=${mail%/*}
	if [[ ${SERIES:-} && $SERIES != "$name" ]]; then
		[[ ! $current ]] || break
		whole_diff "$mail" >"$tmp/whole"
		add_prerequisite "$tmp/whole"
		continue
	fi
	if [[ $name != "$current" ]]; then
		current=$name
		begin_mail "$name/$COVER"
		emit_cover "$name"
	fi
	whole_diff "$mail" >"$tmp/whole"
	[[ ${SERIES:-} ]] || add_prerequisite "$tmp/whole"
	begin_mail "$mail"
	fix_diffstat "$tmp/mail.head" "$tmp/whole" >"$tmp/head"
	if [[ $SIGNOFF ]]; then
		sign "$tmp/head" patch >"$tmp/signed"
		mv "$tmp/signed" "$tmp/head"
	fi
	cat "$tmp/head" "$tmp/whole"
	printf '\n'
done <<<"$lines"
