#!/bin/bash
# cocci.sh - make cocci: the kernel's coccicheck for mm/ (MODE=report). Each semantic
# patch that reports something of the patched tree is run on base as well: what is
# reported of the one and not of the other is a failure. It goes on for LIMIT= seconds
# (7200; the last one that it begins is run to its end), and the next run with those
# that have no result. COCCI="misc/*" picks some.
#
# results/cocci.tsv has what passed: semantic patch, what the code was (a hash),
# the number of reports that base has too or "-" where it was skipped, date, why skipped.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

LIMIT=${LIMIT:-7200}
[[ $LIMIT =~ ^[1-9][0-9]*$ ]] || die "LIMIT=$LIMIT: a number of seconds is wanted"
results=$ROOT/results/cocci.tsv

"$HARNESS/deps.sh" source build cocci
"$HARNESS/compose.sh"
lock cocci
mkdir -p "$LOGDIR" "$REPORT"
tree=$BUILD/trees/cocci
log=$LOGDIR/cocci.log

# What the reports depend on.
hash_of() {
	{
		git -C "$BUILD/linux" ls-tree -d base -- mm include
		git -C "$BUILD/linux" ls-tree -d series -- mm include
		git -C "$BUILD/linux" ls-tree series -- "scripts/coccinelle/$1" scripts/coccicheck
	} | sha1sum | cut -c1-16
}

# reports COMMIT NAME OUT: those of one semantic patch, without line numbers, which differ.
reports() {
	local out=$3.raw script=scripts/coccinelle/$2

	worktree cocci "$1" >>"$log"
	rm -f "$3.debug"
	make -C "$tree" coccicheck M=mm MODE=report "COCCI=$tree/$script" "J=$JOBS" "DEBUG_FILE=$3.debug" \
		>"$out" 2>&1 </dev/null || say "coccicheck failed: $script" >>"$out"
	cat "$out" "$3.debug" >>"$log"
	# Without this line, spatch has looked at nothing.
	grep -q 'Please check for false positives' "$out" || die "coccicheck did not run; see build/log/cocci.log"
	{ grep -E '^(coccicheck failed|\./\S+:[0-9]+)' "$out" || true; } |
		sed -E 's,^\./,mm/,; s/:[0-9]+(-[0-9]+)?(:[0-9]+)?(-[0-9]+)?:/:/; s/line [0-9]+/line/g' |
		LC_ALL=C sort -u >"$3"
}

# look NUMBER NAME HASH: run one of them, and say what there is to say in KTAP.
look() {
	local nr

	reports series "$2" "$tmp/patched"
	: >"$tmp/base"
	[[ ! -s $tmp/patched ]] || reports base "$2" "$tmp/base"
	LC_ALL=C comm -13 "$tmp/base" "$tmp/patched" >"$tmp/new"
	nr=$(wc -l <"$tmp/patched")
	if grep -q '^Skipping coccinelle' "$tmp/patched.raw"; then
		put_row "$results" "$2" "$3" - "$(date -u +%F)" "it requires another version of coccinelle"
		say "ok $1 $2 # SKIP it requires another version of coccinelle"
	elif grep -q '^coccicheck failed' "$tmp/patched"; then
		say "not ok $1 $2 # it did not run; see build/log/cocci.log"
	elif [[ -s $tmp/new ]]; then
		sed 's/^/# new: /' "$tmp/new"
		say "not ok $1 $2"
	else
		put_row "$results" "$2" "$3" "$nr" "$(date -u +%F)" ""
		say "# reports that base has too: $nr"
		say "ok $1 $2"
	fi
}

# one NUMBER NAME: run it, unless it is known, was not picked, or the time is over.
one() {
	local nr date why hash was

	# shellcheck disable=SC2053 # a pattern
	[[ $2 == ${COCCI:-*} ]] || { say "ok $1 $2 # SKIP not picked by COCCI="; return; }
	hash=$(hash_of "$2")
	IFS=$'\t' read -r _ was nr date why <<<"$(row "$results" "$2")"
	[[ $was == "$hash" ]] || nr=
	if [[ $nr == - ]]; then
		say "ok $1 $2 # SKIP $why"
	elif [[ $nr ]]; then
		say "# reports that base has too: $nr; as run on $date"
		say "ok $1 $2"
	elif ((SECONDS > LIMIT)); then
		say "ok $1 $2 # SKIP not run in $LIMIT seconds; make cocci goes on with it"
	else
		look "$1" "$2" "$hash"
	fi
}

: >"$log"
worktree cocci series
mapfile -t names < <(cd "$tree/scripts/coccinelle" && grep -rlE --include='*.cocci' 'virtual[[:space:]]+report' . |
	sed 's,^\./,,' | LC_ALL=C sort)
((${#names[@]})) || die "no semantic patches in $tree/scripts/coccinelle"
tmp=$(mktemp -d "$BUILD/cocci.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
{
	say "TAP version 13"
	say "1..${#names[@]}"
	for i in "${!names[@]}"; do
		one $((i + 1)) "${names[i]}"
	done
} | tee "$REPORT/cocci.ktap.tmp"
# Of 7.3, there are reports.
grep -qE '^# reports that base has too: [1-9]|SKIP not' "$REPORT/cocci.ktap.tmp" ||
	die "no semantic patch reported anything, not even of base; see build/log/cocci.log"
mv "$REPORT/cocci.ktap.tmp" "$REPORT/cocci.ktap"
"$HARNESS/report.py" count "$REPORT/cocci.ktap"
