#!/bin/bash
# watch.sh - harness/watch.sh, with a made-up tracefs and no kernel.
# uses: lib.sh watch.sh

# shellcheck source=harness/tests/tap.sh
. "$(dirname "$0")/tap.sh"

unset INTERVAL DURATION PID
FS=$TMP/tracing
export TRACEFS=$FS
watch=$HERE/watch.sh

# Commands that do to the made-up tracefs what the kernel would.
mkdir -p "$TMP/bin" "$FS/instances" "$FS/events/cow/cow_fault"
cat >"$TMP/bin/id" <<'ID'
#!/bin/sh
echo "${FAKE_UID:-0}"
ID
cat >"$TMP/bin/mkdir" <<'MKDIR'
#!/bin/bash
/bin/mkdir "$@" || exit
[[ $1 == "$TRACEFS"/instances/* ]] || exit 0
/bin/mkdir -p "$1/events/cow/cow_fault" "$1/options"
[[ ! -e $TRACEFS/hist ]] || cp "$TRACEFS/hist" "$1/events/cow/cow_fault/hist"
mkfifo "$1/trace_pipe" "$1/trace_marker"
# Open for both directions, so that nobody waits for the other end.
exec 5<>"$1/trace_marker" 6<>"$1/trace_pipe"
{
	cat "$TRACEFS/events-to-come"
	while read -r -t 20 line <&5; do
		echo "           sh-7     [000] .....     9.000000: tracing_mark_write: $line"
		[[ $line != end* ]] || break
	done
} >&6 2>/dev/null &
MKDIR
cat >"$TMP/bin/rmdir" <<'RMDIR'
#!/bin/sh
cp -r "$1" "$TRACEFS/removed" 2>/dev/null
rm -rf "$1"
RMDIR
chmod +x "$TMP/bin"/*
PATH=$TMP/bin:$PATH

fails 'who is not root is told so' 'only root.*sudo' env FAKE_UID=1000 "$watch"
fails 'a kernel without events' 'CONFIG_EVENT_TRACING' env TRACEFS=/nonexistent "$watch"
fails 'a kernel without the series' 'no event cow:cow_fault.*series' "$watch"
fails 'a wrong PID=' 'PID=12x: not the number' env PID=12x "$watch"
fails 'no such process' 'no such process' env PID=999999999 "$watch"
fails 'a wrong INTERVAL=' 'INTERVAL=1m: not a number of seconds' env INTERVAL=1m "$watch"
fails 'PID= and a command' 'either' env PID=1 "$watch" true

cat >"$FS/events/cow/cow_fault/format" <<'FORMAT'
name: cow_fault
ID: 500
format:
	field:unsigned int action;	offset:20;	size:4;	signed:0;

print fmt: "address=0x%lx order=%u action=%s reason=%s nr_pages=%u", REC->address, REC->order, __print_symbolic(REC->action, { 0, "reuse" }, { 1, "copy" }, { 2, "fallback" }), __print_symbolic(REC->reason, { 0, "block" }, { 1, "run" }, { 5, "memory" }), REC->nr_pages
FORMAT
cat >"$FS/events-to-come" <<'EVENTS'
        prog-12      [001] .....     1.000001: cow_fault: address=0x7f0000000000 order=9 action=reuse reason=block nr_pages=16
CPU:1 [LOST 3 EVENTS]
        prog-12      [001] .....     1.000002: cow_fault: address=0x7f0000010000 order=9 action=reuse reason=run nr_pages=32
 a b) cow-12         [001] .....     1.000003: cow_fault: address=0x7f0000030000 order=9 action=reuse reason=run nr_pages=64
        prog-13      [000] .....     1.000004: cow_fault: address=0x7f0000040000 order=4 action=fallback reason=memory nr_pages=1
EVENTS
# What it prints without the times, and the blanks that adjust.
table() { sed -E 's/[0-9]+-?[0-9]* s/T s/; s/ +/ /g; s/^ | $//g; /vmstat|^counters|hugepages-/d; /^$/d' "$TMP/table"; }

DURATION=1 INTERVAL=0 "$watch" >"$TMP/table"
same 'they are counted, the most frequent first' "all: T s
events pages folio's order did reason
2 96 9 (2M) reuse run written pages beside the block
1 16 9 (2M) reuse block the block around the page
1 1 4 (64K) fallback memory no folio, or the limit of the memcg: one page
3 more events were lost" "$(table)"
same 'the event is switched off again' 0 "$(cat "$FS/removed/events/cow/cow_fault/enable")"
same 'nothing is left' '' "$(ls "$FS/instances")"

rm -rf "$FS/removed"
DURATION=4 INTERVAL=1 "$watch" >"$TMP/table"
same 'what was in a table is not in the next one' '1 2 96 9 (2M) reuse run written pages beside the block' \
	"$(table | sed '/^all/,$d' | grep 'reuse run' | uniq -c | sed 's/^ *//')"
same 'the last one has all' 'all: T s' "$(table | grep '^all')"

cd "$TMP" || exit
passes 'a command, where one is' env INTERVAL=0 "$watch" test -x bin/id
fails 'its exit status is kept' '' env INTERVAL=0 "$watch" sh -c 'exit 3'
env INTERVAL=0 "$watch" sh -c 'exit 3' >/dev/null 2>&1
same 'as it is' 3 $?
rm -rf "$FS/removed"
sleep 60 &
PID=$! DURATION=1 INTERVAL=0 "$watch" >"$TMP/table"
same 'PID= goes to the instance' "$!" "$(sort -u "$FS/removed/set_event_pid")"
kill $!

cat >"$FS/hist" <<'HIST'
# event histogram
#
# trigger info: hist:keys=action,reason,order:vals=hitcount,nr_pages:sort=hitcount:size=2048 [active]
#

{ action:          0, reason:          1, order:          9 } hitcount:          2  nr_pages:         96
{ action:          2, reason:          5, order:          4 } hitcount:          7  nr_pages:          7

Totals:
    Hits: 9
    Entries: 2
    Dropped: 0
HIST
rm -rf "$FS/removed"
DURATION=2 INTERVAL=1 "$watch" >"$TMP/table"
same 'a histogram is named and not counted twice' "all: T s
events pages folio's order did reason
7 7 4 (64K) fallback memory no folio, or the limit of the memcg: one page
2 96 9 (2M) reuse run written pages beside the block" "$(table | sed -n '/^all/,$p')"
passes 'it is a trigger, and no event goes to the trace' \
	bash -c "grep -q '^hist:keys=' '$FS/removed/events/cow/cow_fault/trigger' && [[ ! -e '$FS/removed/events/cow/cow_fault/enable' ]]"
# To it alone, as what the test started in the background is no part of it.
DURATION=60 "$watch" >"$TMP/table" &
sleep 3
kill -TERM $!
wait $! || true
passes 'a signal ends it with a table' grep -q '^all' "$TMP/table"
same 'nothing is left behind' '' "$(ls "$FS/instances")"
done_testing
