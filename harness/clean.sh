#!/bin/bash
# clean.sh - make clean: remove what was built. build/linux stays, as it may have
# work in it, and so do the downloads and the compiler cache.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"
for dir in "$BUILD"/*/; do
	case ${dir%/} in
	*/linux | */cache | */lock) ;;
	*) rm -rf "$dir" ;;
	esac
done
if [[ -d $BUILD/linux ]]; then
	rm -rf "$BUILD"/linux/.build-*
	git -C "$BUILD/linux" worktree prune
fi
