#!/bin/bash
# lint.sh - make lint: what can be checked in less than a minute, without
# building a kernel. The results are build/report/lint.ktap.
#
# Without build/linux (make tree fetches it) the checks that need the kernel's
# scripts are skipped, with a notice.
#
# What checkpatch, kernel-doc, shellcheck and the tests of the harness said is kept in
# build/cache/lint/ for the next run with the same input; FRESH=1 runs them all.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"
"$HARNESS/deps.sh" lint
cd "$ROOT"
mkdir -p "$REPORT"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/results"

# report NAME <what is wrong: no line means that all is well.
report() {
	local out=
	IFS= read -r -d '' out || true
	if [[ $out ]]; then
		awk '{ print "# " $0 }' <<<"${out%$'\n'}"
		say "not ok $1"
	else
		say "ok $1"
	fi
}
skip() { say "ok $1 # SKIP $2"; }

kept=$CACHE/lint
mkdir -p "$kept"
find "$kept" -type f -mtime +30 -delete

key() { sha256sum | cut -c1-32; }

# remember KEY cmd...: what cmd prints, from an earlier run with the same KEY if there
# is one. KEY has to tell all that the output depends on. What fails is run again.
remember() {
	local file=$kept/$1 new=$kept/$1.$BASHPID rc=0
	if [[ ! ${FRESH:-} && -e $file ]]; then
		touch "$file"
		cat "$file"
		return
	fi
	"${@:2}" >"$new" || rc=$?
	cat "$new"
	if ((rc)); then
		rm -f "$new"
		return "$rc"
	fi
	mv "$new" "$file"
}

# for_each_file GROUP KEY cmd... <files: $tmp/GROUP/<n> gets what is wrong with the n-th file.
# cmd prints lines "<file>:..." of the files behind it. KEY has to tell all that they depend
# on beside the file; what did not change since an earlier run is taken from there, the
# other files are spread over $JOBS runs of cmd.
for_each_file() {
	local group=$1 common hash file n=0 i
	local known=() todo=() pids=()
	common=$(key <<<"$2 ${*:3}")
	mkdir "$tmp/$group"
	while read -r hash file; do
		n=$((n + 1))
		hash=$kept/$group-$common-${hash:0:32}-${file//\//_}
		if [[ ! ${FRESH:-} && -e $hash ]]; then
			known+=("$hash")
			ln -s "$hash" "$tmp/$group/$n"
		else
			printf '%s %s %s\n' "$n" "$hash" "$file" >>"$tmp/$group.todo.$((${#todo[@]} % JOBS))"
			todo+=("$file")
		fi
	done < <(xargs -d '\n' sha256sum)
	((${#known[@]} == 0)) || touch -c "${known[@]}"
	for ((i = 0; i < JOBS && i < ${#todo[@]}; i++)); do
		some_files "$group" "$tmp/$group.todo.$i" "${@:3}" &
		pids+=($!)
	done
	((${#pids[@]} == 0)) || wait "${pids[@]}"
}

# some_files GROUP LIST cmd..., for for_each_file: LIST has lines "<n> <file to keep> <file>". When
# cmd fails (1 is a finding), or prints a line that is of no file, this is shown with the
# first one, and nothing is kept.
some_files() {
	local group=$1 list=$2 files n keep
	mapfile -t files < <(cut -d' ' -f3- "$list")
	{
		rc=0
		"${@:3}" "${files[@]}" 2>&1 </dev/null || rc=$?
		((rc <= 1)) || say "$3: ended with status $rc"
	} | awk -v dir="$tmp/$group/" '
		FNR == NR { nr[$3] = $1; printf "" >(dir $1); first = first ? first : $1; next }
		{
			file = $0
			sub(/:.*/, "", file)
			if (!(file in nr)) stray = 1
			print >(dir (file in nr ? nr[file] : first))
		}
		END { exit stray }' "$list" - || return 0
	while read -r n keep _; do
		cp "$tmp/$group/$n" "$keep.$BASHPID" && mv "$keep.$BASHPID" "$keep"
	done <"$list"
}

# What git says of a mail.
git_faults() {
	git mailinfo "$tmp/msg" "$tmp/patch" <"$1" >/dev/null 2>&1 || say "git mailinfo does not read it"
	git apply --numstat "$tmp/patch" >/dev/null 2>"$tmp/err" || say "git apply does not read it: $(<"$tmp/err")"
}

check_mails() {
	local name n patches
	if [[ ! $(series_names) ]]; then
		report 'series/' <<<'no series'
		return
	fi
	if ! DIR=$tmp/mails "$HARNESS/mbox.sh" 2>"$tmp/err"; then
		report 'mbox' <"$tmp/err"
		return
	fi
	report 'mbox' </dev/null
	for name in $(series_names); do
		diff <(cut -d' ' -f1 "series/$name/series") \
			<(cd "series/$name" && find . -name '*.patch' ! -name "$COVER" -printf '%P\n' | LC_ALL=C sort) 2>&1 |
			sed -n 's/^[<>] //p' | sed 's/$/: in only one of the list and the directory/' |
			report "series/$name/series lists all patches"
		patches=("$tmp/mails/$name"/*.patch)
		awk -v author="$AUTHOR" -v total=$((${#patches[@]} - 1)) -f "$HARNESS/mail-faults.awk" "${patches[@]}" >"$tmp/faults"
		for ((n = 0; n < ${#patches[@]}; n++)); do
			{
				sed -n "s/^$n //p" "$tmp/faults"
				((n == 0)) || git_faults "${patches[n]}"
			} >"$tmp/fault"
			report "mail $name/${patches[n]##*/}" <"$tmp/fault"
		done
	done
}

# checkpatch tries all of codespell's dictionary on each line, which takes 9 of 10
# seconds. What is in none of the files to check cannot be found: leave it out.
reduced_dictionary() {
	local dictionary
	dictionary=$(/usr/bin/python3 -c 'import codespell_lib, os.path as p
print(p.join(p.dirname(codespell_lib.__file__), "data", "dictionary.txt"))') || return
	find "$tmp/mails" "$tmp/new" -type f -exec cat {} + | tr -cs "[:alnum:]_'\`-" '\n' | tr '[:upper:]' '[:lower:]' | LC_ALL=C sort -u |
		LC_ALL=C awk -F'->' 'FNR == NR { word[$0] = 1; next }
			tolower($1) in word || $1 ~ /[^A-Za-z0-9_'"'"'`-]/' - "$dictionary"
}

# checkpatch [-f --] FILE...: all its findings; the files are below $tmp.
checkpatch() {
	local whole=()
	[[ $1 != -f ]] || { whole=(-f); shift 2; }
	# Debian's python has the modules that checkpatch's helpers import.
	(set -o pipefail && cd "$TREE" && PATH=/usr/bin:$PATH perl scripts/checkpatch.pl --strict --codespell --codespellfile "$tmp/dictionary" --no-signoff --no-summary --terse --show-types "${whole[@]}" "${@/#/$tmp/}" |
		sed "s,^$tmp/,,")
}

# What checkpatch reads beside the file: it asks get_maintainer.pl, too.
checkpatch_key() {
	{
		dpkg-query -W codespell
		cd "$TREE" && git rev-parse 'base^{commit}' &&
			git hash-object scripts/checkpatch.pl scripts/spelling.txt scripts/const_structs.checkpatch scripts/get_maintainer.pl MAINTAINERS
		grep 'checkpatch.pl --strict' "$HARNESS/lint.sh"
	} | key
}

# Its findings less those in checkpatch.ok, where each has its reason.
check_checkpatch() {
	local file common used=$tmp/used patches files results
	: >"$used"
	if ! reduced_dictionary >"$tmp/dictionary"; then
		report 'dictionary of codespell' <<<'not found'
		return
	fi
	common=$(checkpatch_key)
	# The largest first, so that the runs of it end at about the same time.
	mapfile -t patches < <(cd "$tmp" && find mails -name '*.patch' ! -name "$COVER" -printf '%s %p\n' | sort -rn | cut -d' ' -f2-)
	mapfile -t files < <(cd "$tmp" && find new -type f -printf '%s %p\n' | sort -rn | cut -d' ' -f2-)
	(cd "$tmp" && for_each_file checkpatch "$common" checkpatch < <(printf '%s\n' "${patches[@]}"))
	(cd "$tmp" && for_each_file checkpatch-f "$common" checkpatch -f -- < <(printf '%s\n' "${files[@]}"))
	mapfile -t results < <(seq -f "$tmp/checkpatch/%g" ${#patches[@]}; seq -f "$tmp/checkpatch-f/%g" ${#files[@]})
	awk -F' *[|] *' -v used="$used" '
		FNR == 1 { close(left); left = FILENAME ".left" }
		FNR == NR { if (!/^#/ && NF >= 4) { type[++n] = $1; where[n] = $2; text[n] = $3 } next }
		{
			for (i = 1; i <= n; i++)
				if (index($0, ":" type[i] ":") && index($0, where[i]) && index($0, text[i])) {
					print i >>used
					next
				}
			print >left
		}' "$HARNESS/checkpatch.ok" "${results[@]}"
	for file in "${patches[@]}" "${files[@]}"; do
		: >>"${results[0]}.left"
		report "checkpatch ${file#*/}" <"${results[0]}.left"
		results=("${results[@]:1}")
	done
	grep -vE '^#|^$' "$HARNESS/checkpatch.ok" | awk -v used="$used" '
		BEGIN { while ((getline i <used) > 0) seen[i] = 1 }
		NF && !seen[++n] { print "nothing like this is found any more, remove the line: " $0 }' |
		report 'checkpatch.ok has no stale line'
}

# What kernel-doc says of new files, and what is new in files that are touched.
check_kernel_doc() {
	remember "kernel-doc-$1" new_kernel_doc "$1" | report 'kernel-doc'
}

new_kernel_doc() {
	local commit=$1 base files dir
	base=$(git -C "$TREE" rev-parse 'base^{commit}')
	git -C "$TREE" diff --no-renames --name-only --diff-filter=AM "$base" "$commit" -- '*.c' '*.h' >"$tmp/touched"
	mkdir "$tmp/doc-base" "$tmp/doc-new"
	mapfile -t files <"$tmp/touched"
	((${#files[@]})) || return 0
	git -C "$TREE" archive "$commit" -- "${files[@]}" | tar -xf - -C "$tmp/doc-new"
	mapfile -t files < <(git -C "$TREE" ls-tree -r --name-only "$base" -- "${files[@]}")
	((${#files[@]} == 0)) || git -C "$TREE" archive "$base" -- "${files[@]}" | tar -xf - -C "$tmp/doc-base"
	for dir in doc-base doc-new; do
		(cd "$tmp/$dir" && find . -type f | LC_ALL=C sort | xargs python3 "$TREE/scripts/kernel-doc" -none >"$tmp/$dir.out" 2>&1) || true
		sed -E 's/:[0-9]+(:[0-9]+)?:? /: /' "$tmp/$dir.out" | grep -E '(warning|error|Warning|Error|Traceback)' |
			LC_ALL=C sort -u >"$tmp/$dir.warnings" || true
	done
	comm -13 "$tmp/doc-base.warnings" "$tmp/doc-new.warnings"
}

# Paths and hosts of the machine that something was written on.
check_traces() {
	git ls-files -z | xargs -0 grep -nIE '(^|[^A-Za-z0-9_.$}/-])/(work|home|srv|scratch|workspace)/|/tmp/[a-z]+/|[a-z0-9]\.debian\.org|[a-z0-9]\.internal\b' -- 2>/dev/null |
		grep -v '^COPYING:\|^harness/lint.sh:' | head -n 20 | report 'no paths or hosts of one machine'
	git ls-files -z | xargs -0 grep -nIE '[[:blank:]]+$' -- 2>/dev/null |
		grep -vE '^(series|results)/|^(COPYING|[^:]*\.(patch|ktap|txt)):' | head -n 20 | report 'no blanks at the end of lines'
}

# What shellcheck reads beside a script: what any of them sources.
shellcheck_key() {
	{
		shellcheck --version
		sed -n 's/^# shellcheck source=//p' "$@" | sort -u | xargs sha256sum
	} | key
}

check_shell() {
	local scripts results
	mapfile -t scripts < <(git ls-files -co --exclude-standard -- '*.sh' '*.conf' .ci/run | grep -E '^(harness|\.ci)/')
	for_each_file shellcheck "$(shellcheck_key "${scripts[@]}")" shellcheck -x -f gcc < <(printf '%s\n' "${scripts[@]}")
	mapfile -t results < <(seq -f "$tmp/shellcheck/%g" ${#scripts[@]})
	cat "${results[@]}" | report "shellcheck of ${#scripts[@]} scripts"
	for script in "${scripts[@]}"; do
		[[ ! -x $script ]] || ! head -n 1 "$script" | grep -qv '^#!/bin/\(ba\)\?sh$' || say "$script: #! is neither /bin/bash nor /bin/sh"
		[[ -x $script || $script == *.conf ]] || ! head -n 1 "$script" | grep -q '^#!' || say "$script: is not executable"
	done | report 'scripts are executable'
	if compgen -G 'harness/*.py' >/dev/null; then
		python3 -m py_compile harness/*.py 2>&1 | report 'python compiles'
		rm -rf harness/__pycache__
	fi
}

kernel_checks() {
	local file commit
	if ! git -C "$TREE" rev-parse -q --verify 'base^{commit}' &>/dev/null; then
		warn "notice: there is no build/linux: checkpatch, kernel-doc and composing are skipped (make tree fetches it)"
		skip 'compose' 'no build/linux'
		skip 'checkpatch' 'no build/linux'
		skip 'kernel-doc' 'no build/linux'
		return
	fi
	[[ -d $tmp/mails ]] || return 0
	mkdir "$tmp/compose"
	if (compose base "$(git -C "$TREE" rev-parse --absolute-git-dir)" "$tmp/compose" && say "$COMPOSED" >"$tmp/composed") 2>"$tmp/err"; then
		report 'compose' </dev/null
	else
		report 'compose' <"$tmp/err"
		return
	fi
	commit=$(<"$tmp/composed")
	mkdir "$tmp/new"
	for file in $(series_lines | cut -d' ' -s -f2-); do
		# Else the patch that adds the file is the file.
		grep -qF "diff --git a/$file b/$file" series/*/*.patch || continue
		mkdir -p "$tmp/new/$(dirname "$file")"
		cp "$ROOT/$file" "$tmp/new/$file"
	done
	check_checkpatch
	check_kernel_doc "$commit"
}

# What a test depends on: itself, what it shares with others, what it says it uses
# (tap.sh gives it nothing else), and git.
test_key() {
	{
		git --version
		cd "$HARNESS" && sed -n 's/^# uses: //p' "$1" |
			xargs sha256sum "$1" tests/tap.sh tests/series-fixture.sh
	} | key
}

# From here on a command that fails is a result.
set +eo pipefail

{
	say "TAP version 13"
	# The tests of the harness take a while, so they run beside the rest.
	for script in "$HARNESS"/tests/*.sh; do
		[[ -x $script ]] || continue
		name=$(basename "$script" .sh)
		(remember "$name-$(test_key "$script")" "$script" >"$tmp/results/$name" 2>&1 || say "not ok $name: ended with an error" >"$tmp/results/$name.rc") &
	done
	check_mails
	check_shell
	check_traces
	kernel_checks
	wait
	for script in "$HARNESS"/tests/*.sh; do
		[[ -x $script ]] || continue
		name=$(basename "$script" .sh)
		grep -q '^1\.\.[1-9]' "$tmp/results/$name" || say "not ok $name: did not come to its end"
		sed -E "s/^((not )?ok) [0-9]+ (.*)/\1 $name: \3/; /^(TAP|1\.\.)/d; /^(#|(not )?ok)/!s/^/# /" "$tmp/results/$name"
		[[ ! -e $tmp/results/$name.rc ]] || grep -q '^not ok' "$tmp/results/$name" || cat "$tmp/results/$name.rc"
	done
} 2>&1 | awk '
	/^(ok|not ok) / { sub(/ok /, "ok " ++n " ") }
	{ print; fflush() }
	END { print "1.." n }' | tee "$tmp/lint.ktap" | { grep -E '^(#|not ok|ok .*# SKIP|notice)' || true; }
set -eo pipefail
put_file "$REPORT/lint.ktap" <"$tmp/lint.ktap"
"$HARNESS/report.py" count "$REPORT/lint.ktap"
