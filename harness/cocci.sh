#!/bin/bash
# cocci.sh - make cocci: the kernel's coccicheck for mm/ (MODE=report), on base and
# patched. What it reports for patched and not for base is a failure. The report of
# base is kept in build/cache. 40 minutes for each tree on two cores.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

"$HARNESS/deps.sh" source build cocci
"$HARNESS/compose.sh"
lock cocci
mkdir -p "$LOGDIR" "$REPORT"
base=$(git -C "$BUILD/linux" rev-parse 'base^{commit}')
tree=$BUILD/trees/cocci
known=$CACHE/cocci-$base

# reports COMMIT NAME: without line numbers, which differ.
reports() {
	worktree cocci "$1"
	rm -f "$tree/coccicheck.debug"
	run_logged "cocci-$2" make -C "$tree" coccicheck M=mm MODE=report "J=$JOBS" DEBUG_FILE="$LOGDIR/cocci-$2.debug"
	# Without this line, spatch has looked at nothing.
	grep -q 'Please check for false positives' "$LOGDIR/cocci-$2.log" || die "coccicheck did not run; see $LOGDIR/cocci-$2.log"
	{ grep -E '^(\./)?mm/\S+:[0-9]+' "$LOGDIR/cocci-$2.log" || true; } |
		sed -E 's,^\./,,; s/:[0-9]+(-[0-9]+)?(:[0-9]+)?(-[0-9]+)?:/:/; s/line [0-9]+/line/g' |
		LC_ALL=C sort -u >"$LOGDIR/cocci-$2.txt"
}

if [[ ! -e $known ]]; then
	reports "$base" base
	put_file "$known" <"$LOGDIR/cocci-base.txt"
fi
reports series patched
{
	say "TAP version 13"
	LC_ALL=C comm -13 "$known" "$LOGDIR/cocci-patched.txt" | sed 's/^/# new: /' | tee "$LOGDIR/cocci-new.txt"
	if [[ -s $LOGDIR/cocci-new.txt ]]; then
		say "not ok 1 coccicheck: mm"
	else
		say "ok 1 coccicheck: mm # reports that base has too: $(wc -l <"$LOGDIR/cocci-patched.txt")"
	fi
	say "1..1"
} | tee "$REPORT/cocci.ktap"
"$HARNESS/report.py" count "$REPORT/cocci.ktap"
