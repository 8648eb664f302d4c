# shellcheck shell=bash
# series.sh - what compose.sh, refresh.sh and mbox.sh share: the format of
# series/. Source it after lib.sh.
#
# series/<n>-<name>/ is one series for the list. Its file `series` has one line
# a patch: the mail's file name and, behind it, the new files that the patch
# adds. Their content is not in the mail but stands whole in this repository,
# at the same path. When a later patch changes such a file, then that change is
# an ordinary hunk in the later mail, and what the first patch adds is found by
# taking the later hunks back from the whole file.
# shellcheck disable=SC2034 # the scripts that source it use the variables

TREE=$BUILD/linux
# Where series/ and the whole files are read from.
SRC=$ROOT
# Nobody has certified these patches yet: no name stands in them.
AUTHOR_NAME='Series Author'
AUTHOR_EMAIL='author@example.com'
AUTHOR="$AUTHOR_NAME <$AUTHOR_EMAIL>"
COVER=0000-cover-letter.patch

# The same result on every machine, whatever its user has configured.
export LC_ALL=C.UTF-8 TZ=UTC
clean_git() {
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null \
		GIT_AUTHOR_NAME=$AUTHOR_NAME GIT_AUTHOR_EMAIL=$AUTHOR_EMAIL \
		GIT_COMMITTER_NAME=$AUTHOR_NAME GIT_COMMITTER_EMAIL=$AUTHOR_EMAIL \
		git -c core.abbrev=12 -c core.quotePath=false -c core.autocrlf=false \
		-c diff.algorithm=histogram -c diff.noprefix=false "$@"
}
tree_git() { clean_git -C "$TREE" "$@"; }

unset GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE

# The series in order: 1-reuse 2-fault-around ...
series_names() {
	local list found=()
	for list in "$SRC"/series/[0-9]*-*/series; do
		[[ -e $list ]] || return 0
		list=${list%/series}
		found+=("${list##*/}")
	done
	printf '%s\n' "${found[@]}" | sort -V
}

# series_lines [NAME...]: "<series>/<patch> <new file>..." of all patches in order.
series_lines() {
	local name patch files
	for name in $(series_names); do
		while read -r patch files; do
			[[ -n $patch && $patch != \#* ]] || continue
			[[ -f $SRC/series/$name/$patch ]] ||
				die "series/$name/series lists $patch, which is not there (git checkout series/$name brings it back)"
			printf '%s/%s %s\n' "$name" "$patch" "$files"
		done <"$SRC/series/$name/series"
	done
}

# What the composed tree depends on. Cover letters are not part of it.
series_hash() {
	local lines line file hashed=() kind=()
	lines=$(series_lines)
	while read -r -a line; do
		((${#line[@]})) || continue
		hashed+=("$SRC/series/${line[0]}")
		for file in "${line[@]:1}"; do
			if [[ -L $SRC/$file ]]; then
				kind+=("$file -> $(readlink "$SRC/$file")")
			elif [[ -f $SRC/$file ]]; then
				[[ ! -x $SRC/$file ]] || kind+=("$file x")
				hashed+=("$SRC/$file")
			else
				kind+=("$file missing")
			fi
		done
	done <<<"$lines"
	{
		git -C "$TREE" rev-parse -q --verify 'base^{commit}' || true
		printf '%s\n' "$lines" ${kind[@]+"${kind[@]}"}
		((${#hashed[@]} == 0)) || printf '%s\n' "${hashed[@]}" | git hash-object --no-filters --stdin-paths
	} | git hash-object --stdin
}

# split_mail MAIL OUT: OUT.head is all up to the first diff, OUT.diff the rest.
split_mail() {
	awk -v head="$2.head" -v diff="$2.diff" '
		BEGIN { printf "" >head; printf "" >diff }
		/^diff --git / { d = 1 }
		{ print >(d ? diff : head) }' "$1"
}

# new_file_states GITDIR DIR: for each new file, DIR/<series>/<patch> gets the line
# "<mode> <blob><tab><path>", as git update-index takes it, with the content that this
# patch adds. The blobs are in GITDIR.
new_file_states() {
	local git_dir=$1 dir=$2 line lines i j mode blob file mail later
	local -A touched blobs

	lines=$(series_lines)
	[[ $lines ]] || return 0
	mapfile -t lines <<<"$lines"
	while read -r file mail; do
		touched[$mail $file]=1
	done < <(cd "$SRC/series" && awk '/^diff --git / { print substr($3, 3), FILENAME }' "${lines[@]%% *}")
	(cd "$dir" && mkdir -p "${lines[@]%%/*}")
	whole_file_blobs
	for ((i = 0; i < ${#lines[@]}; i++)); do
		read -r -a line <<<"${lines[i]}"
		: >"$dir/${line[0]}"
		for file in "${line[@]:1}"; do
			later=()
			for ((j = ${#lines[@]} - 1; j > i; j--)); do
				mail=${lines[j]%% *}
				[[ ! ${touched[$mail $file]:-} ]] || later+=("$mail")
			done
			[[ ${blobs[$file]:-} ]] ||
				die "$file is missing: series/${line[0]} adds it (git checkout $file brings it back)"
			read -r mode blob <<<"${blobs[$file]}"
			((${#later[@]} == 0)) || first_state "$git_dir" "$dir/index" "${line[0]}"
			printf '%s %s\t%s\n' "$mode" "$blob" "$file" >>"$dir/${line[0]}"
		done
	done
}

# whole_file_blobs, for new_file_states: $blobs gets "<mode> <blob>" of the files in $lines
# that are there.
whole_file_blobs() {
	local file mode files=() blob
	for file in $(printf '%s\n' "${lines[@]}" | cut -d' ' -s -f2-); do
		if [[ -L $SRC/$file ]]; then
			blobs[$file]="120000 $(readlink -n "$SRC/$file" | git --git-dir="$git_dir" hash-object -w --stdin)"
		elif [[ -f $SRC/$file ]]; then
			files+=("$file")
		fi
	done
	((${#files[@]})) || return 0
	while read -r file blob; do
		mode=100644
		[[ ! -x $SRC/$file ]] || mode=100755
		blobs[$file]="$mode $blob"
	done < <(printf '%s\n' "${files[@]/#/$SRC/}" | git --git-dir="$git_dir" hash-object -w --no-filters --stdin-paths |
		paste -d' ' <(printf '%s\n' "${files[@]}") -)
}

# first_state GITDIR INDEX PATCH, for new_file_states: $mode and $blob of $file without
# what the mails $later, the last one first, do to it.
first_state() {
	local git_dir=$1 patch=$3 mail err
	local -x GIT_INDEX_FILE=$2

	rm -f "$GIT_INDEX_FILE"
	clean_git --git-dir="$git_dir" update-index --add --cacheinfo "$mode,$blob,$file"
	for mail in "${later[@]}"; do
		if ! err=$(clean_git --git-dir="$git_dir" apply --cached -R --whitespace=nowarn \
			--include="$file" "$SRC/series/$mail" 2>&1); then
			die "the whole $file does not have what series/$mail adds to it:
$(explain_apply "$SRC/series/$mail" "$err")
Change such a file in build/linux (make tree), in the commit where it belongs, then make refresh."
		fi
	done
	blob=
	read -r mode blob _ < <(clean_git --git-dir="$git_dir" ls-files -s -- "$file") || true
	[[ $blob ]] || die "$file: cannot find what series/$patch adds"
}

# explain_apply MAIL ERR: git apply's complaint, with the hunk's header.
explain_apply() {
	local mail=$1 err=$2 file line
	sed -n 's/^error: //p' <<<"$err" | head -n 5
	IFS=: read -r file line < <(sed -n 's/^error: patch failed: //p' <<<"$err" | head -n 1) || true
	[[ -n ${line:-} ]] || return 0
	awk -v f="diff --git a/$file b/$file" -v l="$line" '
		/^diff --git / { on = $0 == f; n = 0 }
		on && /^@@ / {
			n++
			split($0, part, /[-+, ]+/)
			if (part[2] == l || part[3] == l || index($0, "-" l ",") || index($0, "+" l ",")) {
				print "hunk " n ": " $0
				exit
			}
		}' "$mail"
}

# compose BASE GITDIR WORK: make the commits of all patches on top of BASE, in
# GITDIR, without a checkout. Sets COMPOSED to the last one, and ENDS[name] to
# the last one of each series. WORK is an empty scratch directory.
declare -A ENDS
compose() {
	local base git_dir=$2 work=$3 line lines paths mode blob path owners=() mark commit msg has_diff

	base=$(git --git-dir="$git_dir" rev-parse "$1^{commit}")
	lines=$(series_lines)
	new_file_states "$git_dir" "$work"
	export GIT_INDEX_FILE=$work/index
	marks=0
	: >"$work/stream"
	[[ ! $lines ]] || small_index
	while read -r -a line; do
		((${#line[@]})) || continue
		owners+=("${line[0]%/*}")
		read_mail "${line[0]}"
		apply_mail "${line[@]}"
		clean_git --git-dir="$git_dir" ls-files -s >"$work/files"
		{
			commit_head "$base" "${info[Date]}" "${info[Subject]}"$'\n\n'"$msg"
			printf 'D %s\n' "${paths[@]}"
			while read -r mode blob _ path; do
				printf 'M %s %s %s\n' "$mode" "$blob" "$path"
			done <"$work/files"
		} >>"$work/stream"
	done <<<"$lines"
	unset GIT_INDEX_FILE
	COMPOSED=$base
	import_commits
	while read -r mark commit; do
		ENDS[${owners[mark - 1]}]=$commit
		COMPOSED=$commit
	done <"$work/marks"
}

# small_index, for compose: $paths are the files that the patches have to do with, and the
# index has those that are in the base. git reads and writes it several times for each
# patch, and all of a kernel tree are 90,000.
small_index() {
	local mails
	rm -f "$GIT_INDEX_FILE"
	mapfile -t mails <<<"$lines"
	mapfile -t paths < <(cd "$SRC/series" && awk '
		FILENAME == "-" { for (i = 2; i <= NF; i++) print $i }
		/^diff --git / { print substr($3, 3); print substr($4, 3) }' - "${mails[@]%% *}" <<<"$lines" | LC_ALL=C sort -u)
	clean_git --git-dir="$git_dir" ls-tree -r "$base" -- "${paths[@]}" |
		clean_git --git-dir="$git_dir" update-index --index-info
}

# read_mail MAIL, for compose: $info has its headers, $msg its text, and $work/patch its
# diff, if $has_diff.
declare -A info
read_mail() {
	local key value text
	IFS= read -r -d '' text <"$SRC/series/$1" || true
	has_diff=
	[[ $text != *$'\ndiff --git '* ]] || has_diff=1
	[[ $has_diff || -s $work/$1 ]] || die "series/$1 changes nothing"
	clean_git mailinfo -b --encoding=UTF-8 "$work/msg" "$work/patch" <"$SRC/series/$1" >"$work/info" ||
		die "series/$1 is not a mail that git am takes"
	info=()
	while IFS=: read -r key value; do
		[[ -z $key ]] || info[$key]=${value# }
	done <"$work/info"
	[[ ${info[Subject]:-} && ${info[Date]:-} ]] || die "series/$1 has no Subject: or no Date:"
	IFS= read -r -d '' msg <"$work/msg" || true
}

# apply_mail MAIL FILE..., for compose: bring its diff and its new files into the index.
apply_mail() {
	local mail=$1 there
	shift
	if [[ $has_diff ]] &&
		! clean_git --git-dir="$git_dir" apply --cached --whitespace=nowarn "$work/patch" 2>"$work/err"; then
		die "series/$mail does not apply to $(git --git-dir="$git_dir" log -1 --format='"%s"' "$base"):
$(explain_apply "$SRC/series/$mail" "$(<"$work/err")")"
	fi
	(($#)) || return 0
	there=$(clean_git --git-dir="$git_dir" ls-files -- "$@")
	[[ -z $there ]] || die "series/$mail adds $(head -n 1 <<<"$there"), which is there already"
	clean_git --git-dir="$git_dir" update-index --add --index-info <"$work/$mail"
}

# commit_head PARENT DATE TEXT: how a commit begins in the stream of import_commits; what it
# changes comes after it. PARENT is for the first one, the next ones follow it. What
# a commit is depends on nothing else, so it is the same everywhere.
commit_head() {
	local LC_ALL=C text

	clean_git stripspace <<<"$3" >"$work/text"
	IFS= read -r -d '' text <"$work/text" || true
	printf 'commit refs/harness/new-%s\nmark :%d\n' "$BASHPID" $((++marks))
	printf '%s %s %s\n' author "$AUTHOR" "$2" committer "$AUTHOR" "$2"
	printf 'data %d\n%s' "${#text}" "$text"
	[[ ! ${1:-} ]] || ((marks > 1)) || printf 'from %s\n' "$1"
}

# import_commits: make the commits of $work/stream in $git_dir; $work/marks then has the
# line "<n> <commit>" of each. The branch that git fast-import wants is gone at its end.
import_commits() {
	: >"$work/marks"
	[[ -s $work/stream ]] || return 0
	printf 'reset refs/harness/new-%s\nfrom %040d\n' "$BASHPID" 0 >>"$work/stream"
	clean_git --git-dir="$git_dir" -c fastimport.unpackLimit=100000 fast-import --quiet --force \
		--date-format=rfc2822 --export-marks="$work/marks.new" <"$work/stream" ||
		die "git fast-import does not take the commits"
	sed 's/^://' "$work/marks.new" | sort -n >"$work/marks"
}

# read_config: CONFIG[key] is what git's configuration of build/linux has, keys in small
# letters.
declare -A CONFIG
read_config() {
	local key value

	CONFIG=()
	while IFS=$'\n' read -r -d '' key value; do
		CONFIG[$key]=$value
	done < <(git -C "$TREE" config -z --local --get-regexp '^(user|rebase|harness)\.')
}

# put_config KEY VALUE, after read_config.
put_config() {
	[[ ${CONFIG[${1,,}]:-} == "$2" ]] || git -C "$TREE" config "$1" "$2"
	CONFIG[${1,,}]=$2
}

# busy_tree: tells what is going on in build/linux; false when nothing is.
busy_tree() {
	local dir op
	dir=$(git -C "$TREE" rev-parse --absolute-git-dir)
	for op in rebase-merge:rebase rebase-apply:"am or rebase" MERGE_HEAD:merge \
		CHERRY_PICK_HEAD:cherry-pick REVERT_HEAD:revert BISECT_LOG:bisect; do
		[[ ! -e $dir/${op%%:*} ]] || { say "${op#*:}"; return 0; }
	done
	return 1
}

tree_changes() { tree_git status --porcelain --untracked-files=all; }

# record_state HASH HEAD NAMES: build/linux at HEAD is what series/ says.
record_state() {
	put_config harness.series "$3"
	put_config harness.head "$2"
	put_config harness.composed "$1"
	git -C "$TREE" config --unset harness.next || true
}
