#!/bin/bash
# demo-report.sh - write results/demos.md and results/demo-*.svg from
# results/demo-redis.json and results/demo-forkserver.json; RESULTS= as in demo.sh.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"
RESULTS=${RESULTS:-$ROOT/results}
redis=$RESULTS/demo-redis.json forkserver=$RESULTS/demo-forkserver.json
[[ -s $redis || -s $forkserver ]] || die "$RESULTS has no demo-*.json; make demo-redis demo-forkserver"
"$HARNESS/deps.sh" demo
need_cmd jq gnuplot
tmp=$(mktemp -d "$BUILD/report.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
declare -A color=([base]='#888888' [patched]='#2364aa' [always]='#d1495b' [this]='#2364aa')
declare -A title=([base]='Linux 7.3' [patched]=patched [always]=always [this]='this kernel')

# What both tables use; the columns in their order, as far as they were measured.
# shellcheck disable=SC2016 # jq's variables
common='
	def columns: (map(.kernel) | unique) as $have | ["base", "patched", "always", "this"] | map(select(. as $k | $have | index($k)));
	def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
	def tenth: . * 10 | round / 10 | if . == 0 then 0 else . end;
	def hundredth: . * 100 | round / 100;
	def row: "| \(join(" | ")) |";
	def name: {base: "Linux 7.3", patched: "patched", always: "always", this: "this kernel"}[.];'

# What is taken from a run of redis: [name, a lower number is better, number].
# shellcheck disable=SC2016
measures='
	def mib: . / 1024;
	def large: [to_entries[] | select(.key | test("^[0-9]+$") and . != "4") | .value] | add | mib;
	def measures: . as $r | [
		["extra memory at its peak, MiB", true, ($r.peak_kb - $r.before.used_kb | mib)],
		["extra memory when the child is gone, MiB", true, ($r.gone.used_kb - $r.before.used_kb | mib)],
		["Pss of server and child at the end of the stores, more than before, MiB", true, ($r.at_stores | .pss_kb + .child_pss_kb - $r.before.pss_kb | mib)],
		["current_cow_peak, MiB", true, ($r.cow_peak / 1024 | mib)],
		["rdb_last_cow_size, MiB", true, ($r.rdb_cow / 1024 | mib)],
		["faults of the server while the child lives", true, $r.at_stores.faults - $r.before.faults],
		["faults of the server when it is gone", true, $r.after.faults - $r.gone.faults],
		["server in large folios, before, MiB", false, ($r.before.folios | large)],
		["server in large folios, the child lives, MiB", false, ($r.at_stores.folios | large)],
		["server in large folios, it is gone, MiB", false, ($r.gone.folios | large)],
		["server in large folios, after more stores, MiB", false, ($r.after.folios | large)],
		["server in 64K folios with all their pages, in the end, MiB", false, ($r.after.folios.whole_64 | mib)],
		["folios of 64K with pages missing, in the end", true, $r.after.counters.nr_anon_partially_mapped - $r.before.counters.nr_anon_partially_mapped],
		["blocks copied", true, ($r.after.counters.anon_cow_alloc // 0) - ($r.before.counters.anon_cow_alloc // 0)],
		["folios that khugepaged made", false, ($r.after.counters.collapse_alloc // 0) - ($r.before.counters.collapse_alloc // 0)]];
	def latencies: . as $r | [["while the child lives", "latency_stores"], ["when it is gone", "latency_after"]]
		| map(. as [$when, $key] | ("p50", "p99", "p99.9", "max") as $p
			| ["\($p) \($when), ms", true, $r[$key][$p]]);'

# redis_rows FUNCTION: case, measure, median and span for each column; losing rows first.
redis_rows() {
	jq -r "$common $measures"'
		columns as $columns
		| def cell: "\(map(.) | median | tenth)\(if (max | tenth) > (min | tenth) then " (\(min | tenth) to \(max | tenth))" else "" end)";
		[group_by(.case)[] | .[0].case as $case | map({kernel, m: ('"$1"')}) as $runs
			| range($runs[0].m | length) as $i
			| ($runs[0].m[$i]) as [$what, $lower]
			| ($columns | map(. as $k | {key: $k, value: [$runs[] | select(.kernel == $k) | .m[$i][2]]}) | from_entries) as $v
			| (if $v.base and $v.patched and ($v.base | median) > 0 then ($v.patched | median) / ($v.base | median) else null end) as $ratio
			| {$case, $what, $v, $ratio, lose: (if $ratio == null then 0 elif $lower then $ratio elif $ratio > 0 then 1 / $ratio else 0 end)}]
		| sort_by(-.lose)
		| (["case", "what", ($columns[] | name)] + (if ($columns | index("patched")) and ($columns | index("base")) then ["patched / base"] else [] end)) as $head
		| ($head | row), ($head | map(if . == "case" or . == "what" then "---" else "--:" end) | "|\(join("|"))|"),
		(.[] | . as $r | [$r.case, $r.what, ($columns[] | $r.v[.] | cell)] + (if $head | index("patched / base") then [if $r.ratio then $r.ratio | hundredth | tostring else "-" end] else [] end) | row)' "$redis"
}

# redis_goals: what was hoped for, and what came out.
redis_goals() {
	jq -r "$common $measures"'
		def of($case; $kernel; $what): map(select(.case == $case and .kernel == $kernel) | measures[] | select(.[0] == $what)[2]) | median;
		. as $all | if (columns | index("base") and index("patched")) then
		[map(.case) | unique[] | . as $case
			| def m($kernel; $what): $all | of($case; $kernel; $what);
			("extra memory at its peak, MiB", "extra memory when the child is gone, MiB" | . as $w
				| (m("patched"; $w) / m("base"; $w)) as $x
				| [$x <= 1.05, "\($case): \($w | sub(", MiB"; "")) at most 1.05 of base: \($x | hundredth)"]),
			("faults of the server when it is gone" as $w
				| [m("patched"; $w) < m("base"; $w), "\($case): fewer faults when the child is gone: \(m("base"; $w)) → \(m("patched"; $w))"]),
			("server in large folios, it is gone, MiB" as $w | "server in large folios, before, MiB" as $b
				| ["base", "patched"] | map(100 * m(.; $w) / m(.; $b) | round) as [$x, $y]
				| [$y >= 95, "\($case): large folios kept (95 %): \($x) % → \($y) %"])]
		| sort_by(.[0])[] | "- \(if .[0] then "met" else "**missed**" end): \(.[1])" else empty end' "$redis"
}

# Per worker; all the costs in thousands.
# shellcheck disable=SC2016
fork_rows='
	def per: . / 1000;
	def total: .fork + .store + .rest;
	def size: if .size_kb >= 1024 then "\(.size_kb / 1024)M" else "\(.size_kb)K" end;
	def rows: group_by([.size_kb, .end, .stores, .when])
		| map((map({key: .kernel, value: .}) | from_entries) as $r | {r: $r, one: .[0],
			change: (if $r.base and $r.patched then ($r.patched | total) / ($r.base | total) else 0 end)})
		| sort_by(-.change);'

forkserver_table() {
	jq -r "$common $fork_rows"'
		columns as $columns
		| def each(f): [$columns[] as $k | .r[$k] | f | tostring] | join(" → ");
		(["folios", "worker", "stores of the server", "worker is"] + ["all", "change", "fork()", "stores", "wait", "faults of the server", "of the worker", "used MiB", "whole folios left, %", "in large folios, %"]) as $head
		| ($head | row), "|---|---|---|---|\($head[4:] | map("--:") | join("|"))|",
		(rows[] | [(.one | size), .one.end, .one.stores, .one.when,
			each(total / .forks | per | tenth), (if .change > 0 then "\(.change | . * 1000 | round / 1000)" else "-" end),
			each(.fork / .forks | per | tenth), each(.store / .forks | per | tenth), each(.rest / .forks | per | tenth),
			each(.faults / .forks | tenth), each(.worker_faults / .forks | tenth),
			(if .one.unit == "insns" then each(.used_kb / 1024 | tenth) else "-" end),
			each(100 * .whole_kb[-1] / .whole_kb[0] | round), each(100 * .large_kb[-1] / .whole_kb[0] | round)] | row)' "$forkserver"
}

forkserver_goals() {
	jq -r "$common $fork_rows"'
		def what: .one | "\(size), \(.end), \(.stores), worker \(.when)";
		if (columns | index("base") and index("patched")) then
		(rows | map(select(.r.base and .r.patched))) as $rows
		| def above(f): $rows | map({what: what, x: ((.r.patched | f) / (.r.base | f))}) | map(select(.x > 1.02)) | sort_by(-.x);
		def told(name; f): above(f) as $a | ($rows | length) as $n
			| if $a == [] then [true, "\(name): at most 1.02 of base in all \($n) rows"]
			  else [false, "\(name): above 1.02 of base in \($a | length) of \($n) rows, most in \"\($a[0].what)\": \($a[0].x | hundredth)"] end;
		[told("all that a worker costs"; total), told("fork()"; .fork), told("the stores of the server"; .store), told("the rest of a worker"; .rest),
			told("faults of the server"; .faults), told("faults of the worker"; .worker_faults),
			($rows | map(select((.r.patched.used_kb - .r.base.used_kb) > 0.02 * 32768)) | sort_by(.r.base.used_kb - .r.patched.used_kb)
				| if . == [] then [true, "memory: at most 2 % of the heap above base in all rows"]
				  else [false, "memory: more than 2 % of the heap above base in \(length) rows, most in \"\(.[0] | what)\": \(.[0].r | "\(.base.used_kb / 1024 | tenth) → \(.patched.used_kb / 1024 | tenth)") MiB"] end),
			(["gone", "alive"][] as $w | $rows | map(select(.one.when == $w and .one.size_kb > 4 and .r.patched.whole_kb[-1] < .r.patched.whole_kb[0])) | sort_by(.r.patched.whole_kb[-1])
				| if . == [] then [true, "whole folios of the server: all are left, if the worker is \($w) when the server stores"]
				  else [false, "whole folios of the server: not all are left in \(length) rows, if the worker is \($w) when the server stores; least in \"\(.[0] | what)\": \(.[0].r | map_values(100 * .whole_kb[-1] / .whole_kb[0] | round) | "\(.base) → \(.patched)") %"] end)]
		| sort_by(.[0])[] | "- \(if .[0] then "met" else "**missed**" end): \(.[1])" else empty end' "$forkserver"
}

# curve JSON FILTER: the points of one line of a plot.
curve() { jq -r "$common $2 | @tsv" "$1"; }

# lines: gnuplot's plot command for "file title colour dash" on stdin.
lines() {
	local file title kernel dash sep='plot '
	while IFS=$'\t' read -r file kernel dash title; do
		printf "%s'%s' with lines lw 2 dt %s lc rgb '%s' title '%s'" "$sep" "$file" "$dash" "${color[$kernel]}" "$title"
		sep=', '
	done
	echo
}

plot() {
	run_logged "plot-$1" gnuplot "$tmp/$1.gp"
	put_file "$RESULTS/$1.svg" <"$tmp/$1.svg"
}

plot_head() {
	say "set terminal svg noenhanced size 900,$2 font 'sans-serif,12' background '#ffffff'"
	say "set output '$tmp/$1.svg'"
	say "set multiplot layout $3 title '$4'"
	say "set border 3; set tics nomirror; set grid ytics lc '#dddddd'; set yrange [0:*]; set key below; set xtics autofreq; set ytics autofreq"
}

# The first run of each kernel: all go through the same stores.
plot_redis() {
	local cases case kernel column what
	mapfile -t cases < <(jq -r 'map(.case) | unique | .[]' "$redis")
	{
		plot_head demo-redis $((290 * ${#cases[@]})) "${#cases[@]},2" 'redis-server: BGSAVE during the first half of the stores'
		for case in "${cases[@]}"; do
			for what in used_kb faults; do
				say "set title '$case'; set xlabel 'thousand stores'; set ylabel '$([[ $what == faults ]] && echo 'faults of the server' || echo 'extra memory, MiB')'"
				for kernel in $(jq -r "$common columns | .[]" "$redis"); do
					column=$([[ $what == faults ]] && echo 3 || echo 2)
					curve "$redis" "map(select(.kernel == \"$kernel\" and .case == \"$case\"))[0] | . as \$r | .samples[]
						| [((if .[0] == \"gone\" then \$r.stores else 0 end) + .[1]) / 1000,
							(if $column == 3 then .[3] - \$r.before.faults else (.[2] - \$r.before.used_kb) / 1024 end)]" >"$tmp/$case-$kernel-$what"
					printf '%s\t%s\t1\t%s\n' "$tmp/$case-$kernel-$what" "$kernel" "${title[$kernel]}"
				done | lines
			done
		done
		say "unset multiplot"
	} >"$tmp/demo-redis.gp"
	plot demo-redis
}

plot_forkserver() {
	local unit size stores kernel filter what
	unit=$(jq -r 'if .[0].unit == "insns" then "thousand instructions" else "microseconds" end' "$forkserver")
	{
		plot_head demo-forkserver 640 2,2 'A server stores to 8 pages of its heap while each worker lives'
		for size in 64 2048; do
			for what in fork large; do
				say "set title 'folios of $((size == 64 ? 64 : 2))$( ((size == 64)) && echo K || echo M)'; set xlabel 'workers'; set ylabel '$([[ $what == fork ]] && echo "fork(), $unit" || echo 'heap in large folios, MiB')'"
				filter="(.fork_step | to_entries[] | [(.key + 0.5) * \$n, .value / \$n / 1000])"
				[[ $what == fork ]] || filter="(.large_kb | to_entries[] | [.key * \$n, .value / 1024])"
				for stores in append random; do
					for kernel in $(jq -r "$common columns | .[]" "$forkserver"); do
						curve "$forkserver" ".[] | select(.kernel == \"$kernel\" and .size_kb == $size and .end == \"exit\" and .stores == \"$stores\" and .when == \"alive\")
							| (.forks / (.fork_step | length)) as \$n | $filter" >"$tmp/$size-$what-$stores-$kernel"
						printf '%s\t%s\t%s\t%s\n' "$tmp/$size-$what-$stores-$kernel" "$kernel" "$([[ $stores == append ]] && echo 1 || echo 2)" "${title[$kernel]}, $stores"
					done
				done | lines
			done
		done
		say "unset multiplot"
	} >"$tmp/demo-forkserver.gp"
	plot demo-forkserver
}

# command_of JSON TARGET: what made it.
command_of() {
	jq -r "$common"'(columns) as $c | if $c == ["this"] then "NATIVE=1 " elif $c == ["base", "patched"] then "" else "DEMO_COLUMNS=\"\($c | join(" "))\" " end' "$1" | tr -d '\n'
	say "make $2"
}

redis_text() {
	cat <<-TEXT
	## redis-server

	    $(command_of "$redis" demo-redis)

	$(jq -r 'map(.run) | max' "$redis") runs for each kernel, in turns: the number is the median, in brackets are the least and
	the most. redis-server of Debian's redis-tools, unmodified and with its defaults, in folios
	of 64K: transparent_hugepage/enabled is [madvise] and hugepages-64kB/enabled is
	[always]. At [always] in the former, Redis does without huge pages. The cases:

	$(jq -r 'group_by(.case)[] | .[0] | "- \(.case): \(.keys) keys with \(.bytes) bytes each; \(.stores) times SET of \(if .hot == .keys then "any key" else "any of \(.hot) keys, which are everywhere in memory" end) while the child saves, and as many again when it is gone"' "$redis")

	The stores come in batches from redis-benchmark, with the same seeds on all kernels. Between
	two batches the child saves its share of the data; it is held (SIGSTOP) while they
	run, so that base and patched do the same work in the same order. With values of 8 KiB, the
	child gives back pages that it has saved (MADV_DONTNEED): folios are mapped in part then.

	Memory is what the cgroup of the server and its child is charged without the page cache
	and tmpfs (natively: their Pss). MemAvailable is in the JSON: it moves by 20 MiB from one run
	to the next with what else there is. current_cow_peak is what the child has told the server
	before it was held for the last time, so it depends on the moment; rdb_last_cow_size is what it
	told at its end. khugepaged runs as it does by default, and makes folios of 64K
	on both kernels.$(jq -r 'if any(.[]; .kernel == "always") then " In the column \"always\", each copy fault copies a block of 64K (debugfs cow/copy)." else "" end' "$redis")

	$(redis_goals)

	Extra memory stays when the child is gone, on each kernel: of most folios that were copied
	from, pages are still mapped, and what is not is freed when memory gets short.
	The series changes that only for folios of which less than a quarter is left.

	### What changed; rows that lose come first

	TEXT
	redis_rows measures
	cat <<-TEXT

	### Latency of redis-benchmark

	**This is time in an emulator (TCG), not that of a machine**, except with KVM=1 or NATIVE=1: what
	one fault costs is not to be seen in it. To 0.1 ms; 8 clients; the child is held.

	TEXT
	redis_rows latencies
	say
	say "![redis-server: extra memory and faults](demo-redis.svg)"
}

forkserver_text() {
	local unit
	unit=$(jq -r 'if .[0].unit == "insns" then "thousands of guest instructions" else "microseconds" end' "$forkserver")
	cat <<-TEXT
	## A server that forks workers

	    $(command_of "$forkserver" demo-forkserver)

	A heap of 32 MiB, $(jq -r '.[0].forks' "$forkserver") workers one after another (harness/guest/forkserver.c). A worker stores to 8
	random pages and exits or calls exec. The server stores to 8 pages for each worker, while
	it is alive or when it is gone: always the same (counters), the next ones (append), or random
	ones. Columns are $unit for one worker: fork() until it returns in the server, the
	stores of the server, and the wait for the worker, which is all that the worker does; → is
	between the kernels ($(jq -r "$common"'columns | map(name) | join(", ")' "$forkserver")).

	$(forkserver_goals)

	A store while the worker is alive copies 4K, on each kernel, unless the pages beside it were
	written since the fork(): the folio is whole no more. "whole" is the part of the
	heap in folios of the first size that miss no page, "in large folios" that in any larger than 4K.
	khugepaged is put to sleep in the VM, as it would come by in one row or another.

	TEXT
	forkserver_table
	if [[ $unit == thousands* ]]; then
		cat <<-TEXT

		**An instruction count is not time.** It is what the guest executed (QEMU -icount), and repeats
		to 0.1 %. Caches, TLB misses, the bandwidth of memory and what an exception costs on real
		hardware are not in it: a fault saved is worth more than its instructions, and a byte
		copied costs more than its own.
		TEXT
	fi
	say
	say "![fork(): cost and large folios left](demo-forkserver.svg)"
}

{
	cat <<-TEXT
	# Two demonstrations

	What the series does to programs as they are. Rows that lose come first. In the VM, both kernels
	are CONFIG=bench. NATIVE=1 runs the same on the kernel of this machine.

	TEXT
	if [[ -s $redis ]]; then
		plot_redis >&2
		redis_text
		say
	fi
	if [[ -s $forkserver ]]; then
		plot_forkserver >&2
		forkserver_text
	fi
} >"$tmp/demos.md"
put_file "$RESULTS/demos.md" <"$tmp/demos.md"
say "results: $RESULTS/demos.md"
