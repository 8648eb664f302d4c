#!/bin/sh
# kselftest.sh TAR LIST - in the guest: run the programs of TAR as kselftest does.
#
# Each line of LIST is "SECONDS COMMAND ARGUMENT...", with 0 seconds for a program that
# the architecture does not have. The output is what
# tools/testing/selftests/kselftest/runner.sh writes, without the plan (the host
# writes it, and knows when the guest dies). busybox sh and tools are enough.

tar=$1 list=$2
run=/run/kselftest

mounted() { grep -q " $1 " /proc/mounts; }

# Not off 9p: its page cache and its lack of mmap modes break tests.
mkdir -p "$run"
mounted "$run" || mount -t tmpfs -o mode=755 kselftest "$run" || exit
tar -C "$run" -xf "$tar" || exit
cp "$list" "$run/list"
cd "$run" || exit

mkdir ext4 && mount -t ext4 -o loop ext4.img ext4 || echo "# harness: no ext4"

# After the copy: TAR may lie below /tmp.
mount -t tmpfs -o mode=1777 tmp /tmp
mounted /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
mounted /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mounted /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
if [ -e /sys/block/zram0/disksize ]; then
	echo 512M >/sys/block/zram0/disksize
	mkswap /dev/zram0 >/dev/null && swapon /dev/zram0
fi
grep -q zram /proc/swaps || echo "# harness: no swap"
# shellcheck disable=SC3045 # dash and busybox have both
ulimit -l unlimited
# shellcheck disable=SC3045
ulimit -c 0
# A heap at a random address of the first GiB is now and then where mremap_test wants to map:
# 4 of 60 runs fail on base, and with the heap behind the program none of 60.
echo 1 >/proc/sys/kernel/randomize_va_space
# A test that dies on purpose need not be told on the console.
echo 0 >/proc/sys/debug/exception-trace 2>/dev/null

if sed -u '' </dev/null 2>/dev/null; then
	prefix() { sed -u 's/^/# /'; }
else
	prefix() { awk '{ print "# " $0; fflush() }'; }
fi
line_buffered=
[ ! -x /usr/bin/stdbuf ] || line_buffered="stdbuf -oL"

# A program that exits with 0 has given all the results that it planned.
incomplete() {
	awk '/^TAP version/ { tap = 1 }
		/^1\.\.[0-9]/ { split($1, a, /\.\./); plan = a[2]; planned = 1 }
		/^(not )?ok / { n++; tap = 1 }
		END {
			if (tap && !planned) print "no plan"
			else if (n < plan) print n + 0 " of " plan " results"
		}' "$run/raw"
}

# busybox may lack pkill.
end_session() {
	cat /proc/[0-9]*/stat 2>/dev/null | awk -v sid="$1" '{
		pid = $1
		sub(/.*\) /, "")
		if ($4 == sid) print pid
	}' | while read -r pid; do kill -9 "$pid"; done
}

n=0
while read -r limit cmd; do
	n=$((n + 1))
	name=$(echo "$cmd" | sed 's|^\(bash \)\{0,1\}\./||')
	if [ "$limit" = 0 ]; then
		echo "ok $n selftests: mm: $name # SKIP not built for this architecture"
		continue
	fi
	echo "# timeout set to $limit"
	echo "# selftests: mm: $name"
	echo "selftests: mm: $name" >/dev/kmsg
	echo 127 >rc
	start=$(cut -d. -f1 /proc/uptime)
	# In a session of its own: what it leaves behind is killed, else it would
	# keep the pipe open.
	{
		# shellcheck disable=SC2016,SC2086 # $$ of that sh; the words of the command
		setsid sh -c 'echo $$ >sid; exec timeout -k 5 "$@"' sh "$limit" $line_buffered $cmd </dev/null 2>&1
		echo $? >rc
		end_session "$(cat sid)"
	} | tee raw | prefix
	rc=$(cat rc)
	took=$(($(cut -d. -f1 /proc/uptime) - start))
	echo "# took $took s"
	line="$n selftests: mm: $name"
	case $rc in
	0)
		why=$(incomplete)
		if [ "$why" ]; then
			echo "not ok $line # incomplete: $why"
		else
			echo "ok $line"
		fi ;;
	4) echo "ok $line # SKIP" ;;
	*)
		# busybox and coreutils differ in the exit status of a time-out.
		if [ "$took" -ge "$limit" ]; then
			echo "not ok $line # TIMEOUT $limit seconds"
		else
			echo "not ok $line # exit=$rc"
		fi ;;
	esac
done <list
exit 0
