#!/bin/bash
# mail-faults.sh - each fault of a mail is found, and mails without a fault have none.
# uses: mail-faults.awk

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"

cat >"$TMP/0" <<'M'
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.com>
Date: Mon, 7 Dec 2026 12:00:00 +0000
Subject: [PATCH 0/2] mm: a series

What it is about.

And why.

base-commit: v7.3.4
M
cat >"$TMP/1" <<'M'
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A <a@example.com>
Date: Mon, 7 Dec 2026 12:00:00 +0000
Subject: [PATCH 1/2] mm: one

Why this is so
in two lines.

Assisted-by: LLM
---
 mm/memory.c | 2 +-
 mm/new.c    | 1 +
 2 files changed, 2 insertions(+), 1 deletion(-)
 create mode 100644 mm/new.c

diff --git a/mm/memory.c b/mm/memory.c
--- a/mm/memory.c
+++ b/mm/memory.c
@@ -1 +1 @@
-Signed-off-by: in the code
+Tested-by: in the code
M
sed 's/1\/2/2\/2/' "$TMP/1" >"$TMP/2"
faults() { awk -v author='A <a@example.com>' -v total=2 -f "$HERE/mail-faults.awk" "$@"; }
same 'mails that are as they should be' '' "$(faults "$TMP/0" "$TMP/1" "$TMP/2")"

# finds MAIL WHAT sed-script: it is found in this mail, and nothing else in any.
finds() {
	local mails=("$TMP/0" "$TMP/1" "$TMP/2")
	sed -E "$3" "$TMP/$1" >"$TMP/bad"
	mails[$1]=$TMP/bad
	same "mail $1: $2" "$1 $2" "$(faults "${mails[@]}" | cut -c "1-$((${#2} + 2))")"
}
for n in 0 1 2; do
	finds $n 'From: is not' 's/^From: A/From: B/'
	finds $n 'no Date:' '/^Date:/d'
	finds $n 'no Date:' 's/^Date:.*/Date: /'
	finds $n 'Subject: does not' 's/\/2\] mm/\/3] mm/'
	finds $n 'Subject: does not' 's/^Subject: \[PATCH /Subject: [/'
	finds $n 'the text is still' 's/two lines|what it is/*** BLURB HERE ***/I'
	finds $n 'has a tag that' 's/^(Assisted-by: LLM|And why.)/&\nsigned-off-by: A <a@example.com>/'
done
finds 0 'the changelog is empty' '/^What it is/d; /^base-commit/s/.*/Link: x\n&/; s/^And why.*/Cc: x/'
finds 0 'no base-commit:' 's/v7.3.4/main/'
finds 0 'no base-commit:' 's/v7.3.4/12345678/'
finds 1 'the changelog is empty' '/^in two lines/d'
finds 1 'no Assisted-by: LLM' 's/by: LLM/by: me/'
finds 2 'no Assisted-by: LLM' '/^Assisted-by/d'
finds 1 'text between ---' 's/^---$/&\nv2: more/'
finds 2 'has a binary file' 's/^@@ .*/GIT binary patch/'
finds 1 'text between ---' 's/^ create mode.*/&\n\nv2: more/'
same 'another prefix, and a number with zeros' '' \
	"$(for n in 0 1 2; do sed -E 's/PATCH ([0-9])\/2/RFC PATCH v2 0\1\/2/' "$TMP/$n" >"$TMP/p$n"; done; faults "$TMP/p0" "$TMP/p1" "$TMP/p2")"
same 'a base that is a commit' '' \
	"$(sed -E "s/v7.3.4/$(printf '%040d' 7)/" "$TMP/0" >"$TMP/p0"; faults "$TMP/p0" "$TMP/1" "$TMP/2")"
done_testing
