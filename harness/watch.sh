#!/bin/sh
# watch.sh [COMMAND...] - make watch: which write faults on large folios reused pages,
# copied a block or fell back in the running kernel, in folios of which order, and why.
#
# The kernel has to have the series. This needs root, tracefs, sh and awk, and no other
# file of this repository: copy it to the machine in question. The tracepoint
# cow:cow_fault is counted in a tracefs instance of its own, which is removed at the end.
#
# INTERVAL=10 is the time between two tables in seconds; 0: only the one at the end.
# It ends with Ctrl-C, or after DURATION= seconds. PID= watches one process, with the
# threads and children it has and makes; COMMAND is run, and watched as PID= would.
#
# Where the kernel has histograms and all processes are watched, the kernel counts, and
# a fault costs next to nothing; else each event is read from trace_pipe.

set -eu
LC_ALL=C
export LC_ALL

die() {
	printf '%s: error: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

seconds() {
	case $2 in
	'' | *[!0-9]*) die "$1=$2: not a number of seconds" ;;
	esac
}

INTERVAL=${INTERVAL:-10}
DURATION=${DURATION:-0}
PID=${PID:-}
seconds INTERVAL "$INTERVAL"
seconds DURATION "$DURATION"
case $PID in
*[!0-9]*) die "PID=$PID: not the number of a process" ;;
esac
[ -z "$PID" ] || [ $# -eq 0 ] || die "give either PID= or a command"
[ "$(id -u)" = 0 ] || die "only root can read tracefs: sudo $0, or sudo make watch"
[ -z "$PID" ] || [ -d "/proc/$PID" ] || die "PID=$PID: there is no such process"

tracefs=${TRACEFS:-$(awk '$3 == "tracefs" { print $2; exit }' /proc/mounts)}
if [ -z "$tracefs" ]; then
	grep -qw tracefs /proc/filesystems ||
		die "this kernel, $(uname -r), has no tracefs: it was built without CONFIG_EVENT_TRACING"
	die "tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing"
fi
[ -e "$tracefs/events" ] ||
	die "this kernel, $(uname -r), has no events in $tracefs: it was built without CONFIG_EVENT_TRACING"
format=events/cow/cow_fault/format
[ -e "$tracefs/$format" ] ||
	die "this kernel, $(uname -r), has no event cow:cow_fault: it does not have the series (or CONFIG_TRANSPARENT_HUGEPAGE)"

# mawk would wait until it has read 4096 bytes.
awk='awk'
case $(awk -W version 2>&1 </dev/null || true) in
*mawk*) awk='awk -W interactive' ;;
esac

instance=$tracefs/instances/cow-watch-$$
tmp=$(mktemp -d)
reader='' table='' child='' sleeping='' made=''

cleanup() {
	trap '' INT TERM HUP
	for pid in $sleeping $reader $table; do
		kill "$pid" 2>/dev/null || true
	done
	# The instance is busy as long as its trace_pipe is open.
	[ -z "$reader" ] || wait "$reader" 2>/dev/null || true
	if [ -n "$made" ]; then
		rmdir "$instance" || printf '%s: cannot remove %s\n' "${0##*/}" "$instance" >&2
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

mkdir "$instance" ||
	die "cannot make $instance (locked down? cat /sys/kernel/security/lockdown)"
made=1
dir=$(pwd)
cd "$instance"

put() { printf '%s\n' "$2" >"$1" || die "cannot write $2 to $instance/$1"; }

# Counters of the whole system, "<name> <folio size> <value>".
counters() {
	for file in /sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats/anon_cow_*; do
		[ -e "$file" ] || continue
		size=${file#*/hugepages-}
		echo "${file##*/} ${size%%/*} $(cat "$file")"
	done
	awk '$1 == "pgfault" || $1 == "pgreuse" { print $1, "-", $2 }' /proc/vmstat
}

# Reads events or histograms, each time anew from the start, and prints a table where
# it reads "report <seconds>", or "end <seconds>".
cat >"$tmp/table.awk" <<'AWK'
function label(what, value) {
	return (what, value) in name ? name[what, value] : value
}
function size(order,    kb) {
	# Not all awks have a power of two.
	for (kb = pagesize / 1024; order > 0; order--)
		kb *= 2
	return kb < 1024 ? kb "K" : kb / 1024 "M"
}
function count(action, reason, order, n, pages,    key) {
	key = action " " reason " " order
	if (!(key in events))
		keys[++nkeys] = key
	events[key] += n
	touched[key] += pages
}
function row(key, n, pages,    f) {
	split(key, f, " ")
	printf "%9d %10d  %5d %-7s %-9s %-8s %s\n", n, pages, f[3], "(" size(f[3]) ")", f[1], f[2], \
		why[f[1], f[2]]
}
# The most frequent ones first; of what came since the last table, or of all.
function table(title, all,    i, j, best, key, n, done, sum) {
	for (i = 1; i <= nkeys; i++) {
		n[i] = events[keys[i]] - (all ? 0 : was[keys[i]])
		sum += n[i]
	}
	print title (sum ? "" : ": no write fault on a large folio that could do more than a page")
	if (sum)
		printf "%9s %10s  %-13s %-9s %-8s\n", "events", "pages", "folio's order", "did", "reason"
	for (i = 1; i <= nkeys; i++) {
		best = 0
		for (j = 1; j <= nkeys; j++)
			if (n[j] > 0 && !(j in done) && (!best || n[j] > n[best]))
				best = j
		if (!best)
			break
		done[best] = 1
		key = keys[best]
		row(key, n[best], touched[key] - (all ? 0 : touched_was[key]))
	}
	if (lost > (all ? 0 : lost_was))
		print lost - (all ? 0 : lost_was) " more events were lost"
	print ""
	fflush()
	for (key in events) {
		was[key] = events[key]
		touched_was[key] = touched[key]
	}
	lost_was = lost
}
BEGIN {
	why["reuse", "block"] = "the block around the page"
	why["reuse", "run"] = "written pages beside the block"
	why["reuse", "dense"] = "written pages all over the folio"
	why["copy", "run"] = "written pages beside the block"
	why["copy", "always"] = "debugfs cow/copy is always"
	why["copy", "last"] = "little of the folio is left; it will be freed"
	why["fallback", "memory"] = "no folio, or the limit of the memcg: one page"
	why["fallback", "poison"] = "a page could not be read: one page"
	why["fallback", "race"] = "page tables changed meanwhile: one page"
	# The names of what are numbers in a histogram.
	while ((getline line <format) > 0) {
		if (line !~ /^print fmt:/)
			continue
		parts = split(line, part, "__print_symbolic")
		for (i = 2; i <= parts; i++) {
			what = part[i]
			sub(/^[^>]*>/, "", what)
			sub(/,.*/, "", what)
			while (match(part[i], /[{] *[0-9]+, *"[^"]*" *[}]/)) {
				split(substr(part[i], RSTART + 1, RLENGTH - 2), pair, /[ ,"]+/)
				name[what, pair[pair[1] == "" ? 2 : 1]] = pair[pair[1] == "" ? 3 : 2]
				part[i] = substr(part[i], RSTART + RLENGTH)
			}
		}
	}
}
# { action: 0, reason: 1, order: 9 } hitcount: 5  nr_pages: 80
/^# event histogram/ { split("", events); split("", touched); lost = 0; nkeys = 0 }
/^[{] action:/ {
	gsub(/[{},:]/, " ")
	count(label("action", $2), label("reason", $4), $6, $8, $10)
}
/^ *Dropped:/ { lost = $2 }
# task-1 [000] ..... 1.2: cow_fault: address=0x1 order=9 action=copy reason=run nr_pages=16
/ cow_fault: address=/ {
	split("", field)
	for (i = NF; i > NF - 4; i--)
		field[substr($i, 1, index($i, "=") - 1)] = substr($i, index($i, "=") + 1)
	count(field["action"], field["reason"], field["order"], 1, field["nr_pages"])
}
/ \[LOST [0-9]+ EVENTS\]/ { sub(/.*LOST /, ""); lost += $1 }
/(^|: )report [0-9]+$/ { table(last + 0 "-" $NF " s"); last = $NF }
/(^|: )end [0-9]+$/ {
	table("all: 0-" $NF " s", 1)
	printf "" >finished
	close(finished)
}
AWK

mkfifo "$tmp/pipe"
$awk -v pagesize="$(getconf PAGESIZE 2>/dev/null || echo 4096)" -v format="$tracefs/$format" \
	-v finished="$tmp/finished" \
	-f "$tmp/table.awk" <"$tmp/pipe" &
table=$!

hist='hist:keys=action,reason,order:vals=nr_pages'
if [ -e events/cow/cow_fault/hist ] && [ -z "$PID" ] && [ $# -eq 0 ]; then
	exec 3>"$tmp/pipe"
	put events/cow/cow_fault/trigger "$hist"
	tell() {
		cat events/cow/cow_fault/hist >&3
		echo "$1 $2" >&3
	}
else
	hist=
	put options/markers 1
	put options/event-fork 1
	cat trace_pipe >"$tmp/pipe" &
	reader=$!
	# In the trace, it is behind what was traced before.
	tell() { echo "$1 $2" >trace_marker; }
fi

if [ -n "$PID" ]; then
	# Twice, for threads that are made meanwhile by one that was not listed yet.
	for task in "/proc/$PID/task/"* "/proc/$PID/task/"*; do
		echo "${task##*/}" >>set_event_pid || die "PID=$PID: there is no such process"
	done
fi
start=$(date +%s)
counters >"$tmp/before"
if [ $# -gt 0 ]; then
	(
		status=0
		cd "$dir"
		# shellcheck disable=SC2016 # for the shell that becomes the command
		sh -c 'echo $$ >"$1" && echo $$ >"$2/set_event_pid" &&
			echo 1 >"$2/events/cow/cow_fault/enable" && shift 2 && exec "$@"' \
			sh "$tmp/pid" "$instance" "$@" || status=$?
		echo "$status" >"$tmp/status.new"
		mv "$tmp/status.new" "$tmp/status"
	) &
	child=$!
elif [ -z "$hist" ]; then
	put events/cow/cow_fault/enable 1
fi

stop='' elapsed=0 next=$INTERVAL
trap 'stop=1' INT TERM HUP
while [ -z "$stop" ] && [ ! -e "$tmp/status" ] && { [ -z "$PID" ] || [ -d "/proc/$PID" ]; } &&
	{ [ "$DURATION" -eq 0 ] || [ "$elapsed" -lt "$DURATION" ]; }; do
	if [ "$INTERVAL" -gt 0 ] && [ "$elapsed" -ge "$next" ]; then
		tell report "$elapsed"
		next=$((next + INTERVAL))
	fi
	sleep 1 &
	sleeping=$!
	wait "$sleeping" || true
	sleeping=
	elapsed=$(($(date +%s) - start))
done

# From here on it ends in any case.
trap '' INT TERM HUP
status=0
if [ -n "$child" ]; then
	[ -e "$tmp/status" ] || kill "$(cat "$tmp/pid")" 2>/dev/null || true
	wait "$child" || true
	status=$(cat "$tmp/status")
fi
[ -n "$hist" ] || put events/cow/cow_fault/enable 0
tell end $(($(date +%s) - start))
tries=0
until [ -e "$tmp/finished" ] || [ "$tries" -ge 50 ]; do
	sleep 0.1 2>/dev/null || sleep 1
	tries=$((tries + 1))
done

counters | awk '
	FNR == NR { before[$1, $2] = $3; next }
	{ change = $3 - before[$1, $2] }
	$2 == "-" { other = other "  " $1 " " change; next }
	change { if (!n++) print "counters of the whole system:"; printf "  %s/stats/%s %d\n", "hugepages-" $2, $1, change }
	END { print (n ? "  " : "the whole system: ") "/proc/vmstat:" other }' "$tmp/before" -
(exit "$status")
