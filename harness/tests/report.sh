#!/bin/bash
# report.sh - what report.py makes of KTAP.
# uses: report.py

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"
report=$HERE/report.py
# A python3 that is a shim of pyenv takes ten times as long to start.
PATH=/usr/bin:$PATH

cat >"$TMP/kselftest" <<'E2'
TAP version 13
1..5
# timeout set to 300
# selftests: mm: cow
# TAP version 13
# 1..4
# # [RUN] one
# ok 1 a case
# ok 2 - another # SKIP no swap
# # a < b & "c"
# not ok 3 third
# ok 4 a case
# took 12 s
not ok 1 selftests: mm: cow # exit=1
# selftests: mm: quiet
ok 2 selftests: mm: quiet
# selftests: mm: dies
# TAP version 13
# 1..2
# ok 1 mapped at 0x7f001000 in 12 ms
not ok 3 selftests: mm: dies # incomplete: 1 of 2 results
# selftests: mm: ksm_tests -M
ok 4 selftests: mm: ksm_tests -M # SKIP
ok 5 selftests: mm: kernel log
E2
same 'count: nested results, and programs without any' '5 passed, 2 failed, 2 skipped' "$("$report" count "$TMP/kselftest")"
same 'names: addresses and times are not part of them' 'pass	mm: dies: mapped at 0x... in N s' "$("$report" list "$TMP/kselftest" | grep mapped)"
same 'names: the second of one name is told apart' 'pass	mm: cow: a case (2)' "$("$report" list "$TMP/kselftest" | grep '(2)')"

cat >"$TMP/kunit" <<'E2'
KTAP version 1
1..1
    KTAP version 1
    # Subtest: cow_policy
    # module: cow_policy_kunit
    1..3
    ok 1 block
        KTAP version 1
        # Subtest: window
        ok 1 left
        # window: EXPECTATION FAILED at mm/tests/cow_policy_kunit.c:10
        not ok 2 right
    # window: pass:1 fail:1 skip:0 total:2
    not ok 2 window
    ok 3 order # SKIP no THP
# cow_policy: pass:1 fail:1 skip:1 total:3
not ok 1 cow_policy
E2
same 'KUnit: the innermost results count' '2 passed, 1 failed, 1 skipped' "$("$report" count "$TMP/kunit")"
same 'KUnit: names have the suites' 'fail	cow_policy: window: right' "$("$report" list "$TMP/kunit" | grep ^fail)"

printf 'TAP version 13\nok 1 a\nok 2 b\n' >"$TMP/flat"
same 'flat lists' '2 passed, 0 failed, 0 skipped' "$("$report" count "$TMP/flat")"
: >"$TMP/empty"
fails 'no result is a failure' '0 passed' "$report" count "$TMP/empty"
printf 'TAP version 13\n# selftests: mm: cow\n# ok 1 a\n' >"$TMP/cut"
fails 'output that is cut off is a failure' '1 passed, 1 failed' "$report" count "$TMP/cut"
fails 'a missing file' 'No such file' "$report" count "$TMP/none"

# The comparison with base.
cat >"$TMP/base" <<'E2'
# comment
pass	mm: cow: stays
pass	mm: cow: breaks
pass	mm: cow: vanishes
pass	mm: cow: newly skipped
fail	mm: cow: fails there too
fail	mm: cow: is mended
varies	mm: cow: shaky
skip	mm: cow: skipped there
skip	mm: cow: runs and fails now
E2
kselftest() {
	printf 'TAP version 13\n1..1\n# selftests: mm: cow\n# TAP version 13\n'
	sed 's/^/# /'
	printf 'not ok 1 selftests: mm: cow # exit=1\n'
}
kselftest >"$TMP/now" <<'E2'
ok 1 stays
not ok 2 breaks
ok 3 newly skipped # SKIP no swap
not ok 4 fails there too
ok 5 is mended
not ok 6 shaky
ok 7 skipped there # SKIP no NUMA
not ok 8 runs and fails now
ok 9 new here
E2
mkdir "$TMP/report"
printf 'kselftest\t%s\t1\t61\t%s\n' "$TMP/now" "$TMP/log" >"$TMP/parts"
echo log >"$TMP/log"
fails 'check is red' '^3 passed, 4 failed, 3 skipped' "$report" check "$TMP/parts" "$TMP/base" "$TMP/report"
cp "$TMP/said" "$TMP/told"
passes 'a new failure' grep -q '^FAILED kselftest: mm: cow: breaks (passes on base' "$TMP/told"
passes 'a test that is gone' grep -q '^FAILED kselftest: mm: cow: vanishes (gone' "$TMP/told"
passes 'a test that is newly skipped' grep -q '^FAILED kselftest: mm: cow: newly skipped (passes on base, is skipped now: SKIP no swap)' "$TMP/told"
passes 'a test that did not run on base and fails now' grep -q '^FAILED kselftest: mm: cow: runs and fails now' "$TMP/told"
passes 'a failure that base has too is named' grep -q 'fails on base too' "$TMP/told"
passes 'what is mended is told' grep -q '^1 cases fail on base and pass now' "$TMP/told"
kselftest >"$TMP/now" <<'E2'
not ok 1 fails there too
E2
printf 'fail\tmm: cow: fails there too\n' >"$TMP/base"
passes 'what fails on base only does not turn it red' "$report" check "$TMP/parts" "$TMP/base" "$TMP/report"
passes 'junit.xml is XML' python3 -c "import sys, xml.dom.minidom; xml.dom.minidom.parse('$TMP/report/junit.xml')"
passes 'summary.md has the table' grep -q '^| kselftest | 0 | 0 | 1 | 1m01s |' "$TMP/report/summary.md"
fails 'no list of the base kernel is a failure' 'make baseline' "$report" check "$TMP/parts" "$TMP/nobase" "$TMP/report"
printf 'lint\t%s\t1\t5\t%s\n' "$TMP/none" "$TMP/log" >"$TMP/parts"
fails 'a part that did not run is a failure' 'FAILED lint: lint ran' "$report" check "$TMP/parts" "$TMP/base" "$TMP/report"
printf 'lint\t%s\t1\t5\t%s\n' "$TMP/flat" "$TMP/log" >"$TMP/parts"
fails 'a part that ends badly is one too' 'FAILED lint: lint ran' "$report" check "$TMP/parts" "$TMP/base" "$TMP/report"
cat "$TMP/now" >"$TMP/run2"
sed -i 's/^# not ok 1/# ok 1/' "$TMP/run2"
same 'what varies between runs on base' 'varies	mm: cow: fails there too' "$("$report" list "$TMP/now" "$TMP/run2" | grep fails)"
done_testing
