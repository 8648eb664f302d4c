#!/bin/bash
# docs.sh - make docs: the kernel's own checks of documentation, for base and for the
# commits of build/linux: htmldocs of the directories that the series touch, or that
# quote a source file which they touch, the ABI files, and references to files. It
# fails on what is not said of the base.
#
# The pages are then in build/docs/output/. What was said of the base is kept for the
# next run; FRESH=1 asks again.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"

"$HARNESS/deps.sh" source build docs
"$HARNESS/compose.sh"
lock docs
base=$(git -C "$TREE" rev-parse 'base^{commit}')
tip=$(git -C "$TREE" rev-parse HEAD)
src=$BUILD/trees/docs
out=$BUILD/docs
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Debian's python has the modules that Debian's sphinx imports.
export PATH=/usr/bin:$PATH

[[ ! $(tree_changes) ]] || warn "notice: what is not committed in build/linux is not looked at"
if [[ ! -e $src/.git ]]; then
	rm -rf "$src"
	need_space "$BUILD" 2500
	git -C "$TREE" worktree prune
	run_logged docs-tree git -C "$TREE" worktree add -f --detach "$src" "$tip"
fi

touched() { git -C "$src" diff --no-renames --name-only --diff-filter="$1" "$base" "$tip" -- "${@:2}"; }

# The directories of pages that have an index, which is what SPHINXDIRS= takes.
dirs_of() {
	local dir
	while read -r dir; do
		while [[ $dir == */* && ! -e $src/$dir/index.rst ]]; do
			dir=${dir%/*}
		done
		[[ $dir != */* ]] || say "${dir#Documentation/}"
	done | LC_ALL=C sort -u
}

# Called with the tip checked out.
docs_dirs() {
	{
		touched AM 'Documentation/*.rst'
		touched AM '*.c' '*.h' | sed 's/^/kernel-doc:: /' >"$tmp/quotes"
		(cd "$src" && grep -rlwFf "$tmp/quotes" --include='*.rst' Documentation) || true
	} | dirs_of | tr '\n' ' '
}

# said COMMIT NAME FILE: what the checks say of it, without line numbers.
said() {
	local name=$2 log
	tree_git -C "$src" checkout -q --detach "$1"
	cd "$src"
	rm -rf "$out/output"
	mkdir -p "$out/output"
	# One at a time: a page's warnings are not among another's.
	run_logged "docs-$name-html" make -s "O=$out/output" "SPHINXDIRS=$dirs" SPHINXOPTS=-j1 htmldocs
	run_logged "docs-$name-abi" python3 tools/docs/get_abi.py --dir Documentation/ABI validate
	run_logged "docs-$name-files" tools/docs/documentation-file-ref-check
	for log in html abi files; do
		sed -E "/^\\$ /d; s,$src/,,g; s,$out/,,g" "$LOGDIR/docs-$name-$log.log" |
			sed -E 's/:[0-9]+/:/g; s/ line [0-9]+/ line/g; /^ *$/d'
	done | LC_ALL=C sort | put_file "$3"
}

tree_git -C "$src" checkout -q --detach "$tip"
dirs=$(docs_dirs)
[[ $dirs ]] || die "the series touch no documentation"
say "directories of Documentation/: $dirs"
kept=$out/base-$({ say "$base $dirs" && dpkg-query -W python3-sphinx; } | sha256sum | cut -c1-16)
if [[ ! -s $kept || ${FRESH:-} ]]; then
	said "$base" base "$kept"
fi
said "$tip" patched "$out/patched"
LC_ALL=C comm -13 "$kept" "$out/patched" >"$tmp/new"
if [[ -s $tmp/new ]]; then
	cat "$tmp/new" >&2
	die "$(wc -l <"$tmp/new") lines are not said of the base (logs: build/log/docs-patched-*.log)"
fi
say "docs: nothing is said that is not said of the base ($(wc -l <"$out/patched") lines); the pages: build/docs/output/"
