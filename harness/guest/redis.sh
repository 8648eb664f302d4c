#!/bin/bash
# redis.sh PROGRAMS KERNEL RUN CASE... - run redis-server with folios of 64K, save with
# BGSAVE while redis-benchmark stores, and store again when the child is gone. One
# record in JSON for each case; lines with "#" tell what goes on.
#
# CASE is NAME:KEYS:BYTES:HOT:STORES, with values of so many BYTES and stores to the
# first HOT of the keys. PROGRAMS is a directory with folios and fixed_seed.so.
#
# The stores come in batches. Between two of them the child saves its share of the
# data, and meanwhile it is held with SIGSTOP: the order of the work is the same
# however fast the machine is. KERNEL is a name for the record. It changes the switch for 64K, and sets it back.

set -euo pipefail

programs=$1 kernel=$2 run=$3
shift 3
size=/sys/kernel/mm/transparent_hugepage/hugepages-64kB
batches=8
dir='' cgroup='' server='' child='' was=''

say() { printf '%s\n' "$*"; }
die() { say "redis.sh: error: $*" >&2; exit 1; }
cli() { redis-cli -s "$dir/socket" "$@"; }

cleanup() {
	[[ -z $child ]] || kill -CONT "$child" 2>/dev/null || true
	[[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
	wait
	[[ -z $was ]] || echo "$was" >"$size/enabled"
	[[ -z $cgroup ]] || rmdir "$cgroup" 2>/dev/null || true
	[[ -z $dir ]] || rm -rf "$dir"
}

# Memory is counted by a cgroup where there is one to be had.
setup() {
	[[ -w $size/enabled ]] || die "$size/enabled cannot be written to; be root, on a kernel with folios of 64K"
	was=$(sed 's/.*\[\(.*\)\].*/\1/' "$size/enabled")
	echo always >"$size/enabled"
	dir=$(mktemp -d /run/demo-redis.XXXXXX)
	mount | grep -q ' /sys/fs/cgroup ' || mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || true
	echo +memory 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
	cgroup=/sys/fs/cgroup/demo-redis
	mkdir -p "$cgroup" 2>/dev/null || true
	if [[ ! -e $cgroup/memory.current ]]; then
		rmdir "$cgroup" 2>/dev/null || true
		cgroup=
	fi
}

# field FILE NAME: the number behind NAME, without a process of its own; 0 if the
# process that it is about is gone.
field() {
	local name rest
	number=0
	while read -r name rest; do
		if [[ $name == "$2" ]]; then
			number=${rest%% *}
			return
		fi
	done 2>/dev/null <"$1" || true
}

# Memory of the server and its child in KiB, without the page cache and tmpfs (the file
# that is saved). Without a cgroup it is what they map: less than what they keep, as
# pages of large folios stay that are not mapped any more.
read_used() {
	local sum
	if [[ $cgroup ]]; then
		read -r sum <"$cgroup/memory.current"
		field "$cgroup/memory.stat" file
		used=$(((sum - number) / 1024))
		return
	fi
	field "/proc/$server/smaps_rollup" Pss_Anon:
	used=$number
	[[ -z $child ]] || field "/proc/$child/smaps_rollup" Pss_Anon:
	[[ -z $child ]] || used=$((used + number))
}

# Field 10 of stat; the name of the process has no blank.
read_faults() {
	local fields
	read -ra fields <"/proc/$server/stat"
	faults=${fields[9]}
}

rollup() {
	field "/proc/$1/smaps_rollup" "$2:"
	printf '%s' "$number"
}

counters() {
	local file value sep='{'
	for file in "$size"/stats/*; do
		read -r value <"$file"
		printf '%s"%s":%s' "$sep" "${file##*/}" "$value"
		sep=,
	done
	printf '}'
}

# snapshot: what is mapped now, as a JSON object.
snapshot() {
	local used faults
	read_used
	read_faults
	printf '{"used_kb":%s,"faults":%s,"rss_kb":%s,"pss_kb":%s' "$used" "$faults" \
		"$(rollup "$server" Rss)" "$(rollup "$server" Pss)"
	[[ -z $child ]] || printf ',"child_rss_kb":%s,"child_pss_kb":%s' "$(rollup "$child" Rss)" "$(rollup "$child" Pss)"
	field /proc/meminfo MemAvailable:
	printf ',"available_kb":%s' "$number"
	field /proc/vmstat pgreuse
	printf ',"pgreuse":%s,"counters":%s,"folios":%s}' "$number" "$(counters)" "$("$programs/folios" "$server")"
}

# Debian's redis-tools has the server's program by another name.
start_server() {
	ln -sf "$(command -v redis-server || command -v redis-check-rdb)" "$dir/redis-server"
	(
		[[ -z $cgroup ]] || echo "$BASHPID" >"$cgroup/cgroup.procs"
		exec "$dir/redis-server" --port 0 --unixsocket "$dir/socket" --save '' --dir "$dir" \
			--rdbcompression no --logfile "$dir/log"
	) &
	server=$!
	for ((i = 0; i < 100; i++)); do
		[[ $(cli ping 2>/dev/null) != PONG ]] || return 0
		sleep 0.2
	done
	cat "$dir/log" >&2 || true
	die "redis-server did not start"
}

stop_server() {
	cli shutdown nosave >/dev/null 2>&1 || true
	wait "$server" || true
	server=
	rm -f "$dir"/*.rdb
}

# Neighbours in memory are no neighbours among the keys: the hot ones are everywhere.
fill() {
	local from step=5000
	for ((from = 0; from < keys; from += step)); do
		cli EVAL 'local value = string.rep("v", ARGV[4])
			for i = ARGV[1], math.min(ARGV[1] + ARGV[2], ARGV[3]) - 1 do
				redis.call("SET", string.format("key:%012d", i * 7919 % ARGV[3]), value)
			end' 0 "$from" "$step" "$keys" "$bytes" >/dev/null
	done
	[[ $(cli dbsize) == "$keys" ]] || die "$(cli dbsize) keys instead of $keys"
}

# save_until PERMILLE: let the child go on until it has saved so much.
save_until() {
	local saved=0
	kill -CONT "$child"
	while saved=$(stat -c %s "$dir/temp-$child.rdb" 2>/dev/null) && ((saved < keys * bytes * $1 / 1000)); do
		sleep 0.02
	done
	kill -STOP "$child" 2>/dev/null || die "the child ended before the stores did"
}

# sample PHASE STORES
sample() {
	local used faults nr
	read_used
	read_faults
	read -r nr <"$size/stats/nr_anon"
	samples+="${samples:+,}[\"$1\",$2,$used,$faults,$nr]"
	((used <= peak)) || peak=$used
}

# store SEED STORES
store() {
	FIXED_SEED=$1 LD_PRELOAD=$programs/fixed_seed.so redis-benchmark -s "$dir/socket" -c 8 \
		-n "$2" -r "$hot" -d "$bytes" -t set 2>&1 | tr '\r' '\n' >>"$dir/bench"
}

# latency: of all stores since the last call, as a JSON object; in buckets of 0.1 ms.
latency() {
	awk '/^Cumulative distribution/ { on = 1; last = 0; next }
		on && / milliseconds / { count = $NF + 0; print $3, count - last; last = count; next }
		{ on = 0 }
		/^ +avg +min/ { getline; print $6, 0 }' "$dir/bench" | sort -n | awk '
		{ ms[NR] = $1; sum[NR] = total += $2; if ($2 == 0) max = $1 }
		END {
			if (!total) exit 1
			n = split("50 99 99.9", p)
			for (i = 1; i <= n; i++) {
				for (j = 1; sum[j] < total * p[i] / 100; j++);
				printf "%s\"p%s\":%s", (i > 1 ? "," : "{"), p[i], (ms[j] < max ? ms[j] : max)
			}
			printf ",\"max\":%s}", max
		}' || die "redis-benchmark told no latencies: $(tail -n 3 "$dir/bench")"
	: >"$dir/bench"
}

# info NAME: a number of INFO.
info() { cli info persistence | tr -d '\r' | sed -n "s/^$1://p"; }

# Some sleep for each few keys: the child must not be done before it is first held.
begin_save() {
	local delay=$((-keys / 40000))
	cli config set rdb-key-save-delay "$((delay ? delay : 1))" >/dev/null
	cli bgsave >/dev/null
	read -r child _ <"/proc/$server/task/$server/children" || true
	[[ $child ]] || die "BGSAVE has no child"
	kill -STOP "$child"
}

end_save() {
	kill -CONT "$child"
	while [[ $(info rdb_bgsave_in_progress) == 1 ]]; do
		sample saves "$stores"
		sleep 0.2
	done
	[[ $(info rdb_last_bgsave_status) == ok ]] || die "BGSAVE failed: $(tail -n 3 "$dir/log")"
	child=
}

run_case() {
	local name keys bytes hot stores samples='' peak=0 before at_stores gone after during behind cow saved i
	IFS=: read -r name keys bytes hot stores <<<"$1"
	say "# $kernel, run $run, $name: $keys keys of $bytes bytes"
	start_server
	grep -q '^THP_enabled:.*1' "/proc/$server/status" || die "redis-server has switched off huge pages for itself; is transparent_hugepage/enabled [always]?"
	fill
	sleep 1
	before=$(snapshot)
	sample before 0
	begin_save
	say "# $kernel, run $run, $name: $stores stores while the child saves"
	for ((i = 1; i <= batches; i++)); do
		store "$i" $((stores / batches))
		sample child $((stores * i / batches))
		save_until $((900 * i / batches))
		sample child $((stores * i / batches))
	done
	during=$(latency)
	saved=$(stat -c %s "$dir/temp-$child.rdb")
	cow=$(info current_cow_peak)
	at_stores=$(snapshot)
	end_save
	gone=$(snapshot)
	say "# $kernel, run $run, $name: $stores stores when it is gone"
	for ((i = 1; i <= batches; i++)); do
		store $((batches + i)) $((stores / batches))
		sample gone $((stores * i / batches))
	done
	behind=$(latency)
	after=$(snapshot)
	printf '{"kernel":"%s","run":%s,"case":"%s","keys":%s,"bytes":%s,"hot":%s,"stores":%s,"memory":"%s","saved_at_stores":%s,"cow_peak":%s,"rdb_cow":%s,"peak_kb":%s,"latency_stores":%s,"latency_after":%s,"before":%s,"at_stores":%s,"gone":%s,"after":%s,"samples":[%s]}\n' \
		"$kernel" "$run" "$name" "$keys" "$bytes" "$hot" "$stores" "$([[ $cgroup ]] && echo memcg || echo pss)" "$saved" "$cow" \
		"$(info rdb_last_cow_size)" "$peak" "$during" "$behind" "$before" "$at_stores" "$gone" "$after" "$samples"
	stop_server
}

trap cleanup EXIT
trap 'exit 130' INT TERM
setup
for one; do
	run_case "$one"
done
