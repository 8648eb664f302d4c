#!/bin/bash
# roundtrip.sh - tree -> refresh -> tree, and the mails, on a small made-up tree.

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME='A Developer' GIT_AUTHOR_EMAIL='dev@example.com'
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL
unset SERIES SIGNOFF LINUX BUILD FORCE DISCARD GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
R=$TMP/repo L=$TMP/repo/build/linux

g() { git -C "$L" "$@"; }
run() { (cd "$R" && "harness/$1.sh"); }
mails() { (cd "$R" && harness/mbox.sh); }
# All that a refresh writes, with the modes.
state() {
	(cd "$R" && find . -path ./build -prune -o -path ./.git -prune -o -path ./harness -prune -o \
		\( -type f -o -type l \) -printf '%p %m %l\n' -exec sha256sum {} + | sort | sha256sum)
}
commit() { g add -A && g commit -q -m "$1

Why: $1.

Assisted-by: LLM"; }
trees() { g log --format='%T %s%n%b' base..HEAD; }

new_repo() {
	rm -rf "$R"
	mkdir -p "$R/harness" "$L/mm"
	cp "$HERE"/*.sh "$HERE"/base.env "$R/harness/"
	printf '#!/bin/sh\n' >"$R/harness/source.sh"
	git -C "$R" init -q
	g init -q
	seq 1 100 >"$L/mm/memory.c"
	seq 1 50 >"$L/mm/gone.c"
	printf '#!/bin/sh\necho\n' >"$L/script"
	chmod +x "$L/script"
	printf 'a\0b' >"$L/logo"
	echo '*.o' >"$L/.gitignore"
	g add -A
	g commit -q -m 'Linux 7.3.4'
	g tag base
	g checkout -q --detach
}

edit() { sed -i "s/^$1\$/$1 $2/" "$L/${3:-mm/memory.c}"; }

# Three series that do what a series may do to files.
fill() {
	run compose >/dev/null
	edit 10 first
	commit 'mm: first' >/dev/null
	edit 20 second
	seq 1 30 >"$L/mm/policy.h"
	mkdir -p "$L/tools/test"
	printf '#!/bin/sh\nexit 0\n' >"$L/tools/test/run.sh"
	chmod +x "$L/tools/test/run.sh"
	ln -s run.sh "$L/tools/test/link"
	commit 'mm: äöü add a policy, whose subject is so long that a mail has to fold it twice: once, and one more time'
	g branch 1-first
	edit 5 grows mm/policy.h
	edit 30 third
	commit 'mm: grow the policy'
	seq 1 20 >"$L/mm/only.c"
	printf 'x\0y' >"$L/blob"
	commit 'mm: only a new file'
	g branch 2-second
	g mv mm/gone.c mm/moved.c
	edit 7 moved mm/moved.c
	chmod -x "$L/script"
	printf 'a\0c' >"$L/logo"
	commit 'mm: rename, mode and binary'
	edit 8 again mm/policy.h
	edit 25 again mm/policy.h
	g rm -q mm/only.c
	printf 'no newline at the end' >"$L/mm/last"
	seq 1 5 >"$L/mm/short-lived"
	commit 'mm: grow it again'
	g rm -q mm/short-lived
	chmod +x "$L/mm/policy.h"
	commit 'mm: remove'
	g branch 3-third
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

# mbox, without a kernel tree.
mv "$R/build" "$TMP/build.away"
mails >"$TMP/mbox" 2>"$TMP/err"
passes 'mbox writes without a kernel tree' test -s "$TMP/mbox"
mv "$TMP/build.away" "$R/build"
git clone -q "$L" "$TMP/clone" 2>/dev/null
git -C "$TMP/clone" checkout -q base
passes 'git am takes it' git -C "$TMP/clone" am "$TMP/mbox"
same 'and gives the same commits' "$want" "$(git -C "$TMP/clone" log --format='%T %s%n%b' base..HEAD)"
git -C "$TMP/clone" checkout -q base
(cd "$R" && SERIES=1-first harness/mbox.sh) >"$TMP/one" 2>/dev/null
passes 'one series alone' git -C "$TMP/clone" am "$TMP/one"
same 'has its early version of the file' "$(g rev-parse '1-first^{tree}')" "$(git -C "$TMP/clone" rev-parse 'HEAD^{tree}')"
# What git itself makes of the commits, but for what is meant to differ.
compare_mails() {
	local kind=$1
	sed -E '/^From 0+/d; /^(Date|From|MIME-Version|Content-T.*|Subject|base-commit|prerequisite-patch-id): /d' | cat -s >"$TMP/mails.$kind"
}
(cd "$R" && SERIES=3-third harness/mbox.sh 2>/dev/null) | awk '/^From 0/ { n++ } n > 1' | compare_mails ours
git -C "$L" -c core.abbrev=12 -c diff.algorithm=histogram format-patch -q --stdout --no-signature --no-renames --binary --zero-commit \
	2-second..3-third | compare_mails git
same 'the mails are what git format-patch writes' "$(<"$TMP/mails.git")" "$(<"$TMP/mails.ours")"
fails 'an unknown SERIES is refused' 'choose from|unknown' env SERIES=9-none bash -c "cd '$R' && harness/mbox.sh"
fails 'SIGNOFF=1 needs an identity' 'user.name' env SIGNOFF=1 bash -c "cd '$R' && harness/mbox.sh"
git -C "$R" config user.name 'Jane Döe'
git -C "$R" config user.email jane@example.org
(cd "$R" && SIGNOFF=1 harness/mbox.sh) >"$TMP/signed" 2>/dev/null
git -C "$TMP/clone" checkout -q base
passes 'git am takes signed mails' git -C "$TMP/clone" am "$TMP/signed"
same 'their author is the sender' 'Jane Döe <jane@example.org>' "$(git -C "$TMP/clone" log -1 --format='%an <%ae>')"
same 'and signs off, behind the other tags' $'Assisted-by: LLM\nSigned-off-by: Jane Döe <jane@example.org>' \
	"$(git -C "$TMP/clone" log -1 --format='%(trailers)' | sed '/^$/d')"
passes 'the neutral author is gone' bash -c "! grep -q author@example.com '$TMP/signed'"

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
passes 'and works after it' run refresh

# Patches vanish, change their names and places.
GIT_SEQUENCE_EDITOR='sed -i /mm:.only.a/d' g rebase -q -i base >/dev/null 2>&1
while [[ -e $(git -C "$L" rev-parse --absolute-git-dir)/rebase-merge ]]; do
	g rm -q --cached mm/only.c 2>/dev/null
	GIT_EDITOR=true g rebase --continue >/dev/null 2>&1 || break
done
passes 'refresh after commits vanished' run refresh
same 'their mails are gone' '1' "$(find "$R/series/2-second" -name '000[1-9]*' | wc -l)"
same 'their files too' '' "$(ls "$R/blob" 2>/dev/null)"
same 'no directory is left empty' '' "$(find "$R" -path "$R/.git" -prune -o -path "$R/build" -prune -o -type d -empty -print)"
before=$(state)
run refresh >/dev/null
same 'and again it is stable' "$before" "$(state)"
g commit -q --amend -m 'mm: another name

Renamed.'
passes 'refresh after a rename' run refresh
same 'no stale mail' '1' "$(find "$R/series/3-third" -name '*another-name*' | wc -l)"
passes 'the list of patches is right' bash -c "cd '$R/series/3-third' && diff <(cut -d' ' -f1 series) <(ls *.patch | grep -v 0000)"

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
same 'a refused refresh changes nothing' '' "$(run refresh >/dev/null; a=$(state); g commit -q --allow-empty -m 'x: y'; run refresh >/dev/null 2>&1; g reset -q --hard HEAD^; [[ $a == "$(state)" ]] || echo differs)"
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

# A user's own tree.
git -C "$TMP/clone" checkout -q base
git -C "$TMP/clone" branch -q -D series 2>/dev/null
LINUX=$TMP/clone
export LINUX
passes 'apply to a tree of the base' run apply
same 'leaves a branch with the series' "$(g rev-parse 'HEAD^{tree}')" "$(git -C "$LINUX" rev-parse 'cow-series^{tree}')"
fails 'an existing branch is not overwritten' 'BRANCH=' run apply
git -C "$LINUX" branch -q -D cow-series
# No patch applies: what is in the way is named, and nothing is left.
apply_fails() {
	local refs
	refs=$(git -C "$LINUX" for-each-ref)
	fails "$1" "$2" bash -c "cd '$R' && harness/apply.sh 2>&1 | tr '\n' ' '; exit \${PIPESTATUS[0]}"
	same 'nothing is left in the tree' "$refs 1" \
		"$(git -C "$LINUX" for-each-ref) $(git -C "$LINUX" worktree list | wc -l)$(git -C "$LINUX" status --porcelain)"
}
sed -i 's/^10$/10 conflict/' "$LINUX/mm/memory.c"
git -C "$LINUX" commit -q -a -m conflict
apply_fails 'apply to a tree that conflicts names patch, file, line and hunk' \
	'1-first/0001-mm-first.patch .* after 0 patches.* mm/memory.c, line 10 .* hunk 1: @@ -7,8 '
sed -i 's/^10 conflict$/10/; s/^30$/30 conflict/' "$LINUX/mm/memory.c"
git -C "$LINUX" commit -q -a -m conflict
apply_fails 'the same of a patch in the middle' \
	'/0003-mm-grow-the-policy.patch .* after 2 patches.* mm/memory.c, line 30 .* hunk 1: @@ -27,7 '
git -C "$LINUX" reset -q --hard base
git -C "$LINUX" rm -q mm/memory.c
git -C "$LINUX" commit -q -m 'no memory.c'
apply_fails 'a file that is not there' '0001-mm-first.patch .*there is no mm/memory.c.*hunk 1: @@ -7,8 '
git -C "$LINUX" reset -q --hard base
git -C "$LINUX" mv mm/memory.c mm/renamed.c
git -C "$LINUX" commit -q -m 'rename'
passes 'a file that was renamed since the base is found' run apply
git -C "$LINUX" branch -q -D cow-series
# A tarball: git has nothing to merge with.
rm -rf "$TMP/tarball"
mkdir "$TMP/tarball"
git -C "$LINUX" archive base | tar -xf - -C "$TMP/tarball"
LINUX=$TMP/tarball
git -C "$LINUX" init -q
sed -i 's/^8$/8 conflict/' "$LINUX/mm/memory.c"
git -C "$LINUX" add -A
git -C "$LINUX" commit -q -m tarball
apply_fails 'a tarball that conflicts: the lines that it lacks are named' \
	'0001-mm-first.patch .*mm/memory.c, line 7, hunk 1: @@ -7,8 .* not in mm/memory.c: 8 .*has not the files of Linux'
mkdir "$LINUX/lib"
git -C "$LINUX" mv mm/memory.c lib/memory.c
git -C "$LINUX" commit -q -m moved
apply_fails 'a tarball where a file has moved' 'there is no mm/memory.c.*hunk 1: @@ -7,8 .*of that name: lib/memory.c'
same 'nor in build/' '' "$(find "$R/build" -mindepth 1 -maxdepth 1 ! -name linux ! -name lock ! -name log)"
fails 'LINUX= has to be there' 'no such directory' env LINUX=/nonexistent bash -c "cd '$R' && harness/apply.sh"
fails 'LINUX= has to be given' 'LINUX=' env -u LINUX bash -c "cd '$R' && harness/apply.sh"
done_testing
