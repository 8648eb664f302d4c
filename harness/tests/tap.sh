# shellcheck shell=bash
# tap.sh - for the tests of the harness: results as KTAP. Source it.
#
# A test tells in a line "# uses: lib.sh ..." which files of harness/ it needs. It finds
# copies of these in $HERE and no others, so `make lint` knows when it has to run again.

set -uo pipefail
TESTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
HERE=$TMP/harness
mkdir "$HERE"
sed -n 's/^# uses: //p' "$0" | (cd "$TESTS/.." && xargs cp -p -t "$HERE")
count=0 failed=0

# result RC NAME: one line; the output of the last run is shown when it failed.
result() {
	count=$((count + 1))
	if (($1 == 0)); then
		echo "ok $count $2"
	else
		failed=$((failed + 1))
		[[ ! -s $TMP/out ]] || awk '{ print "# " $0 }' "$TMP/out"
		echo "not ok $count $2"
	fi
}

# passes NAME cmd...
passes() {
	local rc=0
	"${@:2}" >"$TMP/out" 2>&1 </dev/null || rc=$?
	result "$rc" "$1"
}

# fails NAME PATTERN cmd...: it has to fail and say why.
fails() {
	local rc=0
	"${@:3}" >"$TMP/out" 2>&1 </dev/null && rc=1
	grep -qE -- "$2" "$TMP/out" || rc=1
	cp "$TMP/out" "$TMP/said"
	result "$rc" "$1"
}

# same NAME WANT GOT
same() {
	local rc=0
	printf 'want: %s\ngot:  %s\n' "$2" "$3" >"$TMP/out"
	[[ $2 == "$3" ]] || rc=1
	result "$rc" "$1"
}

done_testing() {
	echo "1..$count"
	((failed == 0))
}
