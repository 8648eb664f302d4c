#!/bin/bash
# cocci.sh - make cocci: the kernel's coccicheck for mm/ (MODE=report). Each semantic
# patch that reports something of the patched tree is run on base as well: what is
# reported of the one and not of the other is a failure.
# COCCI="misc/*" picks some.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

"$HARNESS/deps.sh" source build cocci
"$HARNESS/compose.sh"
lock cocci
mkdir -p "$LOGDIR" "$REPORT"
tree=$BUILD/trees/cocci
log=$LOGDIR/cocci.log

# check COMMIT SCRIPT OUT: the reports of one semantic patch, without line numbers,
# which differ.
check() {
	local out=$3.raw

	worktree cocci "$1" >>"$log"
	rm -f "$3.debug"
	make -C "$tree" coccicheck M=mm MODE=report "COCCI=$tree/$2" "J=$JOBS" "DEBUG_FILE=$3.debug" \
		>"$out" 2>&1 </dev/null || say "coccicheck failed: $2" >>"$out"
	cat "$out" "$3.debug" >>"$log"
	# Without this line, spatch has looked at nothing.
	grep -q 'Please check for false positives' "$out" || die "coccicheck did not run; see build/log/cocci.log"
	{ grep -E '^(coccicheck failed|\./\S+:[0-9]+)' "$out" || true; } |
		sed -E 's,^\./,mm/,; s/:[0-9]+(-[0-9]+)?(:[0-9]+)?(-[0-9]+)?:/:/; s/line [0-9]+/line/g' |
		LC_ALL=C sort -u >"$3"
}

: >"$log"
worktree cocci series
mapfile -t scripts < <(cd "$tree" && grep -rlE --include='*.cocci' 'virtual[[:space:]]+report' scripts/coccinelle | LC_ALL=C sort)
((${#scripts[@]})) || die "no semantic patches in $tree/scripts/coccinelle"
tmp=$(mktemp -d "$BUILD/cocci.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
{
	say "TAP version 13"
	say "1..${#scripts[@]}"
	for i in "${!scripts[@]}"; do
		name=${scripts[i]#scripts/coccinelle/}
		# shellcheck disable=SC2053 # a pattern
		[[ $name == ${COCCI:-*} ]] || { say "ok $((i + 1)) $name # SKIP not picked by COCCI="; continue; }
		check series "${scripts[i]}" "$tmp/patched"
		: >"$tmp/base"
		[[ ! -s $tmp/patched ]] || check base "${scripts[i]}" "$tmp/base"
		LC_ALL=C comm -13 "$tmp/base" "$tmp/patched" >"$tmp/new"
		if grep -q '^Skipping coccinelle' "$tmp/patched.raw"; then
			say "ok $((i + 1)) $name # SKIP it requires another version of coccinelle"
		elif grep -q '^coccicheck failed' "$tmp/patched"; then
			say "not ok $((i + 1)) $name # it did not run; see build/log/cocci.log"
		elif [[ -s $tmp/new ]]; then
			sed 's/^/# new: /' "$tmp/new"
			say "not ok $((i + 1)) $name"
		else
			say "# reports that base has too: $(wc -l <"$tmp/patched")"
			say "ok $((i + 1)) $name"
		fi
	done
} | tee "$REPORT/cocci.ktap.tmp"
# Of 7.3, there are reports.
[[ ${COCCI:-} ]] || grep -q '^# reports that base has too: [1-9]' "$REPORT/cocci.ktap.tmp" ||
	die "no semantic patch reported anything, not even of base; see build/log/cocci.log"
mv "$REPORT/cocci.ktap.tmp" "$REPORT/cocci.ktap"
"$HARNESS/report.py" count "$REPORT/cocci.ktap"
