#!/bin/bash
# roundtrip.sh - tree -> refresh -> tree, on a small made-up tree.
# uses: lib.sh series.sh compose.sh refresh.sh

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"
# shellcheck source=harness/tests/series-fixture.sh
. "$TESTS/series-fixture.sh"

# All that a refresh writes, with the modes.
state() {
	(cd "$R" && find . -path ./build -prune -o -path ./.git -prune -o -path ./harness -prune -o \
		\( -type f -o -type l \) -printf '%p %m %l\n' -exec sha256sum {} + | sort | sha256sum)
}

new_repo
passes 'an empty series/ is composed' run compose
fill >"$TMP/fill" 2>&1
want=$(trees) want_head=$(g rev-parse 'HEAD^{tree}')
passes 'refresh writes three series' run refresh
same 'a file that grows later stands there as it is at the end' "$(<"$L/mm/policy.h")" "$(cat "$R/mm/policy.h")"
same 'modes and links survive' "$(stat -c %a "$R/tools/test/run.sh") $(readlink "$R/tools/test/link")" '755 run.sh'
same 'a file that a later patch removes is not in the repository' '' "$(ls "$R/mm/only.c" 2>/dev/null)"
passes 'new files are not in the mails' bash -c "! grep -q '^+++ b/tools/test/run.sh' '$R'/series/*/*.patch"
passes 'the author is neutral' bash -c "! grep -r dev@example.com '$R/series'"
before=$(state)
passes 'refresh again' run refresh
same 'it changes nothing' "$before" "$(state)"
passes 'tree without a change' run compose
same 'it leaves build/linux as it is' "$want" "$(trees)"

cp -r "$R/build/linux" "$TMP/kept"
g checkout -q base
g branch -q -D series 1-first 2-second 3-third
g config --remove-section harness
passes 'tree from series/ alone' run compose
same 'gives the same commits' "$want" "$(trees)"
same 'and the same tree' "$want_head" "$(g rev-parse 'HEAD^{tree}')"
same 'with the series at their ends' 'mm: only a new file' "$(g log -1 --format=%s 2-second)"
passes 'refresh of it' run refresh
same 'is the same, byte for byte' "$before" "$(state)"
one=$(g rev-parse HEAD)
g checkout -q base
g config --remove-section harness
run compose >/dev/null
same 'the commit IDs are the same everywhere' "$one" "$(g rev-parse HEAD)"

# The stored cover letter's text.
sed -i 's/^Subject: \[PATCH 0/Subject: [RFC PATCH v2 0/; s/^\*\*\* BLURB HERE \*\*\*/Text of mine.\n\nMore (of it):/' \
	"$R/series/2-second/0000-cover-letter.patch"
passes 'refresh after an edit of a cover letter' run refresh
passes 'the text is still there' grep -q '^More (of it):' "$R/series/2-second/0000-cover-letter.patch"
passes 'its prefix is on all mails' grep -q '^Subject: \[RFC PATCH v2 1/2\]' "$R/series/2-second/0001-mm-grow-the-policy.patch"
before=$(state)
run refresh >/dev/null
same 'and again nothing changes' "$before" "$(state)"

# Edits in the repository.
sed -i 's/^12$/12 edited here/' "$R/mm/policy.h"
passes 'an edit of a whole file is composed' run compose
passes 'it is in the patch that adds the file' bash -c "git -C '$L' show 1-first:mm/policy.h | grep -q 'edited here'"
sed -i 's/^8 again$/8 differs/' "$R/mm/policy.h"
fails 'an edit of what a later patch changes is refused' '0002-mm-grow-it-again.patch' run compose
sed -i 's/^8 differs$/8 again/' "$R/mm/policy.h"
passes 'and taken back' run compose
rm "$R/mm/policy.h"
fails 'a missing whole file' 'mm/policy.h is missing' run compose
g show HEAD:mm/policy.h >"$R/mm/policy.h"
chmod +x "$R/mm/policy.h"
mv "$R/series/1-first/0001-mm-first.patch" "$TMP/away"
fails 'a missing patch' '0001-mm-first.patch' run compose
sed 's/^-10$/-11/' "$TMP/away" >"$R/series/1-first/0001-mm-first.patch"
fails 'a patch that does not apply: file and hunk are named' 'hunk 1: @@ -7,7' run compose
mv "$TMP/away" "$R/series/1-first/0001-mm-first.patch"
passes 'all is well again' run compose
same 'as before' '' "$(g status --porcelain)"

# Work of one's own in build/linux.
echo mine >>"$L/mm/memory.c"
passes 'tree with local edits leaves them' run compose
same 'there they are' ' M mm/memory.c' "$(g status --porcelain)"
fails 'refresh refuses a dirty tree' 'not committed' run refresh
sed -i 's/^13$/13 edited/' "$R/mm/policy.h"
fails 'tree refuses when both have changed' 'make tree DISCARD=1' run compose
sed -i 's/^13 edited$/13/' "$R/mm/policy.h"
g checkout -q mm/memory.c
touch "$L/new"
fails 'refresh refuses a file that is not added' 'new' run refresh
rm "$L/new"
g commit -q --allow-empty -m 'mm: empty

Nothing.'
fails 'a commit without a change is refused' 'changes nothing' run refresh
g reset -q --hard HEAD^
edit 40 mine
commit 'mm: mine' >/dev/null
sed -i 's/^13$/13 edited/' "$R/mm/policy.h"
fails 'refresh refuses when series/ has changed' 'FORCE=1' run refresh
passes 'DISCARD=1 drops the commits' env DISCARD=1 bash -c "cd '$R' && harness/compose.sh"
passes 'but keeps them reachable' bash -c "git -C '$L' for-each-ref refs/discarded | grep -q commit"
same 'series/ won' 0 "$(g grep -c '40 mine' | wc -l)"
run compose >/dev/null
GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' g rebase -q -i base >/dev/null 2>&1
fails 'refresh refuses a rebase under way' 'in the middle of a rebase.*--continue' run refresh
edit 11 amended
g commit -q --amend -a --no-edit
g rebase --continue >/dev/null 2>&1
passes 'refresh after a rebase' run refresh
same 'the ends of the series moved along' 'mm: only a new file' "$(g log -1 --format=%s 2-second)"
passes 'the change is in the first patch' grep -q '^+11 amended' "$R/series/1-first/0001-mm-first.patch"
edit 50 conflict
commit 'mm: conflict' >/dev/null
g format-patch -q -1 -o "$TMP/am" && g reset -q --hard HEAD^
edit 50 other
commit 'mm: other' >/dev/null
g am "$TMP"/am/*.patch >/dev/null 2>&1
fails 'refresh refuses an am under way' 'am or rebase' run refresh
g am --abort

# Patches vanish, change their names and places.
GIT_SEQUENCE_EDITOR='sed -i /mm:.only.a/d' g rebase -q -i base >/dev/null 2>&1
while [[ -e $(git -C "$L" rev-parse --absolute-git-dir)/rebase-merge ]]; do
	g rm -q --cached mm/only.c 2>/dev/null
	GIT_EDITOR=true g rebase --continue >/dev/null 2>&1 || break
done
g commit -q --amend -m 'mm: another name

Renamed.'
passes 'refresh after an am that was given up, after commits vanished and one was renamed' run refresh
same 'the mails of those that vanished are gone' '1' "$(find "$R/series/2-second" -name '000[1-9]*' | wc -l)"
same 'their files too' '' "$(ls "$R/blob" 2>/dev/null)"
same 'no directory is left empty' '' "$(find "$R" -path "$R/.git" -prune -o -path "$R/build" -prune -o -type d -empty -print)"
same 'no stale mail' '1' "$(find "$R/series/3-third" -name '*another-name*' | wc -l)"
passes 'the list of patches is right' bash -c "cd '$R/series/3-third' && diff <(cut -d' ' -f1 series) <(ls *.patch | grep -v 0000)"
before=$(state)
run refresh >/dev/null
same 'and again it is stable' "$before" "$(state)"

# Refused with a reason.
mkdir -p "$L/harness" && echo x >"$L/harness/x"
commit 'mm: bad place' >/dev/null
fails "a file in a directory of the repository's own" 'harness of its own' run refresh
g reset -q --hard HEAD^
echo x >"$L/mm/with space"
commit 'mm: space' >/dev/null
fails 'a file name with a space' 'spaces' run refresh
g reset -q --hard HEAD^
edit 60 cut
g commit -q -a -m 'mm: cut

Text
---
more text'
fails 'a changelog that does not survive as a mail' 'does not survive' run refresh
g reset -q --hard HEAD^
same 'a refused refresh changes nothing' '' "$(a=$(state); g commit -q --allow-empty -m 'x: y'; run refresh >/dev/null 2>&1; g reset -q --hard HEAD^; [[ $a == "$(state)" ]] || echo differs)"
g branch -f 1-first base
fails 'a series without commits' 'no commits left' run refresh
g branch -f 1-first "$(g rev-parse HEAD~3)"
g branch -q -D 2-second
fails 'a series whose end is not known' 'where does series 2-second end' run refresh
g branch -q 2-second "$(g rev-parse HEAD~2)"

# Interrupted.
g config harness.refreshing 1
fails 'tree after an interrupted refresh' 'interrupted' run compose
passes 'refresh again heals it' run refresh
passes 'and tree is content' run compose
same 'nothing is left behind' '' "$(find "$R/build" -mindepth 1 -maxdepth 1 ! -name linux ! -name lock ! -name log)"
sed -i 's/^14$/14 edited/' "$R/mm/policy.h"
old=$(g config harness.composed) head=$(g rev-parse HEAD)
run compose >/dev/null
g config harness.next "$(g rev-parse HEAD)"
g config harness.composed "$old"
g config harness.head "$head"
passes 'a tree that was interrupted before it was recorded' run compose
same 'is recorded now' "$(g rev-parse HEAD)" "$(g config harness.head)"
tip=$(g rev-parse HEAD)
GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' g rebase -q -i base >/dev/null 2>&1
edit 70 dirty
passes 'DISCARD=1 in the middle of a rebase' env DISCARD=1 bash -c "cd '$R' && harness/compose.sh"
same 'gives what series/ says' "$tip series" "$(g rev-parse HEAD) $(g symbolic-ref --short HEAD)$(g status --porcelain)"
passes 'and refresh is content' run refresh
fails 'an unknown argument' 'unknown argument' bash -c "cd '$R' && harness/compose.sh x"
done_testing
