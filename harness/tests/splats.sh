#!/bin/bash
# splats.sh - each kind of complaint of the kernel is found, ordinary lines are not,
# and a run turns out as it should.
# uses: lib.sh splats.txt splats.ok

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"
# shellcheck source=harness/lib.sh
. "$HERE/lib.sh"
set +e

while IFS= read -r line; do
	printf '[    1.000000] fine\n[   12.345678] %s\r\n' "$line" >"$TMP/console"
	passes "found: ${line//#/}" find_splats "$TMP/console"
done <<'LINES'
Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000009
WARNING: mm/memory.c:4012 at do_wp_page+0x1a3/0x9b0, CPU#1: cow_reuse/912
BUG: unable to handle page fault for address: ffff888100000000
BUG: kernel NULL pointer dereference, address: 0000000000000008
BUG: Bad page state in process cow_reuse  pfn:12345
BUG: Bad rss-counter state mm:00000000deadbeef type:MM_ANONPAGES val:512
BUG: Bad page map in process cow_reuse  pte:8000000012345067 pmd:12345067
BUG: KASAN: slab-use-after-free in do_wp_page+0x1a3/0x9b0
BUG: sleeping function called from invalid context at mm/memory.c:7001
BUG: scheduling while atomic: cow_reuse/912/0x00000002
BUG: non-zero pgtables_bytes on freeing mm: 4096
kernel BUG at mm/rmap.c:1234!
Oops: general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1] SMP
Unable to handle kernel paging request at virtual address ffff000012345678
Internal error: Oops: 0000000096000004 [#1] SMP
KFENCE: memory corruption in kfree+0x1b/0x30
UBSAN: shift-out-of-bounds in mm/cow_policy.h:33:7
WARNING: possible circular locking dependency detected
WARNING: inconsistent lock state
WARNING: suspicious RCU usage
rcu: INFO: rcu_preempt self-detected stall on CPU
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
INFO: task cow_reuse:912 blocked for more than 120 seconds.
watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [cow_reuse:912]
page dumped because: VM_WARN_ON_FOLIO(folio_test_large(folio))
list_del corruption. prev->next should be ffff888100000000, but was 0000000000000000
refcount_t: underflow; use-after-free.
LINES

fine() { ! find_splats "$1"; }
while IFS= read -r line; do
	printf '[   12.345678] %s\r\n' "$line" >"$TMP/console"
	passes "not found: ${line//#/}" fine "$TMP/console"
done <<'LINES'
Command line: console=ttyS0 panic=-1 debug
MCE: Killing uffd-unit-tests:940 due to hardware memory corruption fault at 7f5739a00000
Memory failure: 0x12345: recovery action for dirty LRU page: Recovered
cow[912]: segfault at 7f5739a00000 ip 0000000000401234 sp 00007ffd12345678 error 7
[Firmware Bug]: TSC ADJUST: CPU0: -123 force to 0
rcu: 	RCU restricting CPUs from NR_CPUS=16 to nr_cpu_ids=2.
Lockdep: lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar
kasan: KernelAddressSanitizer initialized (generic)
page_table_check: enabled
debug: unmapping init [mem 0xffffffff82a00000-0xffffffff82bfffff]
selftests: mm: cow
LINES

# What base has too is left out, and nothing else.
cat >"$TMP/ok" <<'OK'
# make kselftest KERNEL=base CONFIG=kcsan
BUG: KCSAN: data-race in a_function / other_function$
OK
excepted() { SPLATS_OK=$TMP/ok find_splats "$1"; }
printf '[    1.000000] BUG: KCSAN: data-race in a_function / other_function\r\n' >"$TMP/console"
none() { ! excepted "$1"; }
passes "an exception alone is no complaint" none "$TMP/console"
echo '[    1.000000] BUG: KCSAN: data-race in a_function / other_function_2' >>"$TMP/console"
passes "a complaint beside an exception is found" excepted "$TMP/console"
one_line() { [[ $(excepted "$1" | wc -l) == 1 ]]; }
passes "the exception is not shown with it" one_line "$TMP/console"
: >"$TMP/ok"
passes "without exceptions all is found" excepted "$TMP/console"

echo '[    1.000000] fine' >"$TMP/fine"
echo '[    1.000000] WARNING: at x' >"$TMP/bad"
verdict() {
	local rc=0
	vm_verdict "$2" 60 "$3" "the command" || rc=$?
	[[ $rc == "$1" ]] || { echo "status $rc, want $1"; return 1; }
}
passes "a command that succeeds" verdict 0 0 "$TMP/fine"
passes "a command that fails" verdict 3 3 "$TMP/fine"
passes "a complaint fails a run that succeeded" verdict 98 0 "$TMP/bad"
passes "a time-out" verdict 124 124 "$TMP/fine"
passes "a VM that had to be killed at its limit" verdict 124 137 "$TMP/bad"
passes "a VM that died" verdict 99 255 "$TMP/bad"
told() { vm_verdict 0 60 "$TMP/bad" "the command"; }
fails "the console, its path and the command are shown" 'command: the command' told

mkdir "$TMP/build"
# The time limit ends all that was started.
hang() {
	local rc=0
	vm_run 1 "$TMP/console" bash -c 'echo up >&2; sleep 987.5 & wait' || rc=$?
	[[ $rc == 124 && $(<"$TMP/console") == up ]] && ! pgrep -f 'sleep 987\.5' >/dev/null
}
passes "a VM that hangs is ended with its children" hang

done_testing
