#!/bin/bash
# mails.sh - the mails of a small made-up tree, and the series on trees of others.
# uses: lib.sh series.sh base.env compose.sh refresh.sh mbox.sh apply.sh

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"
# shellcheck source=harness/tests/series-fixture.sh
. "$TESTS/series-fixture.sh"

mails() { (cd "$R" && harness/mbox.sh); }

new_repo
fill >"$TMP/fill" 2>&1
want=$(trees)
run refresh >/dev/null

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

# A user's own tree.
git -C "$TMP/clone" checkout -q base
git -C "$TMP/clone" branch -q -D series 2>/dev/null
LINUX=$TMP/clone
export LINUX
passes 'apply to a tree of the base' run apply
same 'leaves a branch with the series' "$(g rev-parse 'HEAD^{tree}')" "$(git -C "$LINUX" rev-parse 'cow-series^{tree}')"
fails 'an existing branch is not overwritten' 'BRANCH=' run apply
git -C "$LINUX" branch -q -D cow-series
# What is in the way is named, and nothing is left. SERIES=1-first is enough for the first
# patch.
apply_fails() {
	local refs
	refs=$(git -C "$LINUX" for-each-ref)
	fails "$1" "$2" bash -c "cd '$R' && harness/apply.sh 2>&1 | tr '\n' ' '; exit \${PIPESTATUS[0]}"
	same 'nothing is left in the tree' "$refs 1" \
		"$(git -C "$LINUX" for-each-ref) $(git -C "$LINUX" worktree list | wc -l)$(git -C "$LINUX" status --porcelain)"
}
sed -i 's/^10$/10 conflict/' "$LINUX/mm/memory.c"
git -C "$LINUX" commit -q -a -m conflict
SERIES=1-first apply_fails 'apply to a tree that conflicts names patch, file, line and hunk' \
	'1-first/0001-mm-first.patch .* after 0 patches.* mm/memory.c, line 10 .* hunk 1: @@ -7,7 '
sed -i 's/^10 conflict$/10/; s/^30$/30 conflict/' "$LINUX/mm/memory.c"
git -C "$LINUX" commit -q -a -m conflict
apply_fails 'the same of a patch in the middle' \
	'2-second/0001-mm-grow-the-policy.patch .* after 2 patches.* mm/memory.c, line 30 .* hunk 1: @@ -27,7 '
git -C "$LINUX" reset -q --hard base
git -C "$LINUX" rm -q mm/memory.c
git -C "$LINUX" commit -q -m 'no memory.c'
SERIES=1-first apply_fails 'a file that is not there' '0001-mm-first.patch .*there is no mm/memory.c.*hunk 1: @@ -7,7 '
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
SERIES=1-first apply_fails 'a tarball that conflicts: the lines that it lacks are named' \
	'0001-mm-first.patch .*mm/memory.c, line 7, hunk 1: @@ -7,7 .* not in mm/memory.c: 8 .*has not the files of Linux'
mkdir "$LINUX/lib"
git -C "$LINUX" mv mm/memory.c lib/memory.c
git -C "$LINUX" commit -q -m moved
SERIES=1-first apply_fails 'a tarball where a file has moved' 'there is no mm/memory.c.*hunk 1: @@ -7,7 .*of that name: lib/memory.c'
same 'nor in build/' '' "$(find "$R/build" -mindepth 1 -maxdepth 1 ! -name linux ! -name lock ! -name log)"
fails 'LINUX= has to be there' 'no such directory' env LINUX=/nonexistent bash -c "cd '$R' && harness/apply.sh"
fails 'LINUX= has to be given' 'LINUX=' env -u LINUX bash -c "cd '$R' && harness/apply.sh"
done_testing
