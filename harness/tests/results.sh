#!/bin/bash
# results.sh - the tables of results, and what check-full.sh keeps of its parts.
# uses: lib.sh check-full.sh kselftest.conf base.env

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"
# shellcheck source=harness/lib.sh
. "$HERE/lib.sh"
set +e

table=$TMP/table
same 'a table that is not there has no line' '' "$(row "$table" x)"
put_row "$table" 2-b/0010-x 7 '' end
put_row "$table" 2-b/0009-x 1 ''
put_row "$table" 1-a.b 'a field'
same 'lines are in order' '1-a.b 2-b/0009-x 2-b/0010-x' "$(cut -f1 "$table" | tr '\n' ' ' | sed 's/ $//')"
same 'empty fields stay' $'2-b/0009-x\t1\t' "$(row "$table" 2-b/0009-x)"
put_row "$table" 2-b/0010-x 8
same 'a new result replaces the old one' $'2-b/0010-x\t8' "$(row "$table" 2-b/0010-x)"
same 'and no other' 3 "$(wc -l <"$table")"
same 'a name is no pattern' '' "$(row "$table" 1-a_b)"

# check-full.sh, with a part that does as told.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git -C "$TMP" init -q
mkdir "$TMP/series"
echo 1 >"$TMP/series/x"
git -C "$TMP" add series
git -C "$TMP" -c user.name=A -c user.email=a@example.com commit -q -m series
part() {
	{
		echo '#!/bin/bash'
		cat
	} >"$TMP/harness/docs.sh"
	chmod +x "$TMP/harness/docs.sh"
}
check_full() { env PARTS=docs LIMIT="${1:-1000}" "$HERE/check-full.sh"; }
counts() { row "$TMP/results/check-full.tsv" docs | cut -f5-7 | tr '\t' ' '; }
kept=$TMP/results/failed-docs.log

part <<'P'
echo '# not ok 3 a case of a program'
echo 'the reason'
echo 'not ok 1 the program # exit=1'
echo 'much more'
echo '4 passed, 1 failed, 2 skipped'
exit 1
P
fails 'a part that fails' '^4 passed, 1 failed, 2 skipped$' check_full
same 'is in the table' '4 1 2' "$(counts)"
passes 'what failed is kept, nested cases too' grep -q '^# not ok 3 a case' "$kept"
passes 'with what was said before it' grep -q '^the reason' "$kept"
same 'and of which series' 1 "$(grep -c "^# docs, series $(git -C "$TMP" log -1 --format=%h), kernel" "$kept")"

part <<<'echo 5 passed, 0 failed, 0 skipped; exit 1'
fails 'a part that fails without a failed case' '^5 passed, 1 failed, 0 skipped$' check_full
passes 'the end of its log is kept' grep -q '^5 passed, 0 failed' "$kept"
part <<<'echo 0 passed, 0 failed, 7 skipped'
fails 'a part that skips all is a failure' '^0 passed, 1 failed, 7 skipped$' check_full
part <<<'exit 0'
passes 'a part without cases is one itself' check_full
same 'and passes' '1 0 0' "$(counts)"
passes 'nothing of the failure is left' test ! -e "$kept"

part <<<'sleep 987.5; exit 1'
# It is begun on a slow machine, too.
put_row "$TMP/results/check-full.tsv" docs 2026-01-01T00:00:00Z x 7.3 1 0 0 0
cut_off() { check_full 8 | grep 'cut off at the limit of 8 s: docs'; }
passes 'a part that is cut off is told' cut_off
same 'and keeps its last result' '1 0 0' "$(counts)"
part <<<'exit 1'
put_row "$TMP/results/check-full.tsv" docs 2026-01-01T00:00:00Z x 7.3 3 0 0 500
passes 'a part that takes longer than the rest of the time' check_full 400
same 'is not begun' '3 0 0' "$(counts)"
echo 2 >"$TMP/series/x"
part <<<'echo 2 passed, 0 failed, 0 skipped'
passes 'series that are not committed' check_full
passes 'are told apart' grep -q -- '-dirty' "$TMP/results/check-full.md"
done_testing
