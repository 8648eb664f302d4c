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

# header_from NAME-AND-EMAIL: the line as git writes it, encoded where needed.
header_from() {
	local tree commit mail=${1##*<}
	tree=$(clean_git --git-dir="$git_dir" mktree </dev/null)
	commit=$(GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=${1% <*} \
		GIT_AUTHOR_EMAIL=${mail%>} \
		GIT_COMMITTER_NAME=$AUTHOR_NAME GIT_COMMITTER_EMAIL=$AUTHOR_EMAIL \
		git --git-dir="$git_dir" commit-tree "$tree" </dev/null)
	clean_git --git-dir="$git_dir" show -s --format=email "$commit" | awk '/^From: / { f = 1 } /^Date: / { exit } f'
}

# whole_diff MAIL: what the mail changes, the new files included, by path.
whole_diff() {
	local mail=$1 states=$tmp/states/$1 tree empty part
	split_mail "$SRC/series/$mail" "$tmp/mail"
	if [[ -s $states ]]; then
		export GIT_INDEX_FILE=$tmp/new-index
		rm -f "$GIT_INDEX_FILE"
		awk '{ print $1, $2 "\t" $3 }' "$states" | clean_git --git-dir="$git_dir" update-index --add --index-info
		tree=$(clean_git --git-dir="$git_dir" write-tree)
		unset GIT_INDEX_FILE
		empty=$(clean_git --git-dir="$git_dir" mktree </dev/null)
		clean_git --git-dir="$git_dir" diff --no-renames --binary "$empty" "$tree" >>"$tmp/mail.diff"
	fi
	# One file a section, in git's order.
	rm -rf "$tmp/parts"
	mkdir "$tmp/parts"
	awk -v dir="$tmp/parts" '
		/^diff --git / { close(out); path = substr($4, 3); n++; out = dir "/" n
			print path "\t" out >(dir "/list") }
		{ print >out }' "$tmp/mail.diff"
	[[ -e $tmp/parts/list ]] || return 0
	LC_ALL=C sort -s -t $'\t' -k1,1 "$tmp/parts/list" | cut -f2 | while read -r part; do
		cat "$part"
	done
}

# The diffstat in the mail is git's; it is made anew where a whole file was
# edited since.
fix_diffstat() {
	local head=$1 diff=$2 want
	want=$(clean_git apply --numstat "$diff" 2>/dev/null |
		awk '$1 != "-" { a += $1; d += $2 } { n++ } END { print n + 0, a + 0, d + 0 }')
	if awk -v want="$want" '
		/^ [0-9]+ files? changed/ {
			a = d = 0
			for (i = 4; i < NF; i++) {
				if ($(i + 1) ~ /^insertion/) a = $i
				if ($(i + 1) ~ /^deletion/) d = $i
			}
			found = $1 " " a " " d
		}
		END { exit found != want }' "$head"; then
		cat "$head"
	else
		awk '/^---$/ { exit } { print }' "$head"
		printf -- '---\n'
		clean_git apply --stat --summary "$diff"
		printf '\n'
	fi
}

# sign HEAD: the sender for the neutral author; his sign-off behind the tags.
sign() {
	local body
	if [[ ! $SIGNOFF ]]; then
		cat "$1"
		return
	fi
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
	sign "$file" cover >"$head"
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

emit() {
	if [[ ${DIR:-} ]]; then
		mkdir -p "$DIR/${1%/*}"
		cat >"$DIR/$1"
	else
		cat
	fi
}

[[ $BASE_COMMIT =~ ^([0-9a-f]{40}|v[0-9.]+)$ ]] || die "harness/base.env: BASE_COMMIT is not a commit ID"
[[ ! $SIGNOFF ]] || from=$(header_from "$sender")
mkdir "$tmp/states"
new_file_states "$git_dir" "$tmp/states"

current=
while read -r mail _; do
	name=${mail%/*}
	if [[ ${SERIES:-} && ${SERIES} != "$name" ]]; then
		# A later series stands on this one.
		if [[ $(printf '%s\n' "$name" "$SERIES" | sort -V | head -n 1) == "$name" ]]; then
			whole_diff "$mail" >"$tmp/whole"
			prerequisites+=("$(clean_git patch-id --stable <"$tmp/whole" | cut -d' ' -f1)")
		fi
		continue
	fi
	if [[ $name != "$current" ]]; then
		current=$name
		emit_cover "$name" | emit "$name/$COVER"
	fi
	whole_diff "$mail" >"$tmp/whole"
	[[ ${SERIES:-} ]] || prerequisites+=("$(clean_git patch-id --stable <"$tmp/whole" | cut -d' ' -f1)")
	fix_diffstat "$tmp/mail.head" "$tmp/whole" >"$tmp/fixed"
	{
		sign "$tmp/fixed" patch
		cat "$tmp/whole"
		printf '\n'
	} | emit "$mail"
done <<<"$lines"
