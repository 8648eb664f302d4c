#!/bin/sh
# coverage.sh TAR LIST - in the guest: run the programs as kselftest.sh does, and print
# what gcov counted meanwhile: a tar file in base64, in lines "# gcov: ...".

mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
gcov=/sys/kernel/debug/gcov
echo 0 >$gcov/reset || exit
sh "${0%/*}/kselftest.sh" "$@" || exit

# tar takes the size of a file from stat, and these have none.
out=$(mktemp -d -p /run) || exit
find $gcov -name '*.gcda' | while read -r file; do
	cat "$file" >"$out/$(basename "$file")"
done
tar -C "$out" -czf - . | base64 -w 76 | sed 's/^/# gcov: /'
