#!/bin/bash
# ktap-count.sh FILE... - "N passed, N failed, N skipped" of what kselftest.sh wrote;
# fails if a case failed or there is none.
#
# A case is a nested result, or the program where it has none. An expected
# failure (XFAIL, TODO) counts as skipped. A failed program adds a failure if none of
# its cases failed.
set -euo pipefail

[[ $# -gt 0 ]] || { echo "usage: ktap-count.sh FILE..." >&2; exit 2; }
cat -- "$@" | tr -d '\r' | awk '
function skipped(line) { return toupper(line) ~ /# *(SKIP|XFAIL|TODO)/ }
/^# ok [0-9]/ { if (skipped($0)) s++; else p++; next }
/^# not ok [0-9]/ { if (toupper($0) ~ /# *TODO/) s++; else f++; next }
/^(not )?ok [0-9]+ selftests: / {
	nested = p + f + s
	if (!nested && $1 == "ok") { if (skipped($0)) s = 1; else p = 1 }
	if ($1 == "not" && !f) f = 1
	P += p; F += f; S += s
	p = f = s = 0
	next
}
END {
	# cut off: results without their program
	if (p + f + s) { P += p; F += f + 1; S += s }
	printf "%d passed, %d failed, %d skipped\n", P, F, S
	exit F > 0 || P + S == 0
}'
