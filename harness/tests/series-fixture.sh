# shellcheck shell=bash
# series-fixture.sh - a small made-up kernel tree in $L, and in $R a repository with the
# scripts that a test uses and with three series. Source it after tap.sh.

export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME='A Developer' GIT_AUTHOR_EMAIL='dev@example.com'
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL
unset SERIES SIGNOFF LINUX BUILD FORCE DISCARD GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
R=$TMP/repo L=$TMP/repo/build/linux

g() { git -C "$L" "$@"; }
run() { (cd "$R" && "harness/$1.sh"); }
commit() { g add -A && g commit -q -m "$1

Why: $1.

Assisted-by: LLM"; }
trees() { g log --format='%T %s%n%b' base..HEAD; }

new_repo() {
	rm -rf "$R"
	mkdir -p "$R/harness" "$L/mm"
	cp "$HERE"/* "$R/harness/"
	printf '#!/bin/sh\n' >"$R/harness/source.sh"
	chmod +x "$R/harness/source.sh"
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
