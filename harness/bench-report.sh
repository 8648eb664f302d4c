#!/bin/bash
# bench-report.sh - write results/README.md and results/*.svg from results/bench.json.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"

no_args "$@"
RESULTS=${RESULTS:-$ROOT/results}
json=$RESULTS/bench.json
[[ -s $json ]] || die "$json is missing; make bench"
"$HARNESS/deps.sh" bench
need_cmd jq gnuplot

# One row a line, tab-separated: change in % of the insns (patched against base),
# arch, mode, size, pattern, and for each column: insns, faults, p50, p99, max, used_kb.
rows() {
	jq -r --arg arch "$1" '
		def cell: if . then [.insns, .faults, .fault_p50, .fault_p99, .fault_max, .used_kb] else [range(6) | "-"] end;
		map(select(.arch == $arch and has("fault_p50"))) | (map(.kernel) | unique) as $have
		| (["base", "khugepaged", "patched", "always"] | map(select(. as $k | $have | index($k)))) as $columns
		| group_by([.mode, .size_kb, .pattern])
		| map((map({key: .kernel, value: .}) | from_entries) as $r
			| [(if $r.base and $r.patched then 100 * ($r.patched.insns / $r.base.insns - 1) else "-" end),
				.[0].mode, .[0].size_kb, .[0].pattern] + ($columns | map($r[.] | cell) | add))
		| sort_by(if .[0] == "-" then -1e9 else -.[0] end)
		| (["change", "mode", "size_kb", "pattern"] + ($columns | map(., "", "", "", "", ""))), .[]
		| @tsv' "$json"
}

# table FILE CONDITION: the rows of which the awk condition on `change` holds.
table() {
	awk -F'\t' -v unit="$unit" '
	function k(x) { return x == "-" ? x : sprintf("%.0f", x / 1000) }
	NR == 1 {
		head = "| mode | folio | pattern |"; line = "|---|---|---|"
		for (i = 5; i <= NF; i += 6) {
			head = head " " $i " |"; line = line "--:|"; n[++cols] = $i
		}
		for (c = 1; c <= cols; c++) if (n[c] == "base") b = c
		for (c = 1; c <= cols; c++) if (n[c] == "patched") p = c
		if (b && p) { head = head " change |"; line = line "--:|" }
		head = head " faults | p50 of a fault | p99 | max | used MiB |"
		line = line "--:|--:|--:|--:|--:|"
		next
	}
	{ change = $1 }
	'"$2"' {
		if (!shown++) { print head; print line }
		printf "| %s | %s | %s |", $2, ($3 >= 1024 ? $3 / 1024 "M" : $3 "K"), $4
		for (c = 1; c <= cols; c++) printf " %s |", k($(5 + 6 * (c - 1)))
		if (b && p) printf (change == "-" ? " - |" : " %+.1f %% |"), change
		for (f = 1; f <= 5; f++) {
			printf " "
			for (c = 1; c <= cols; c++) {
				x = $(5 + 6 * (c - 1) + f)
				if (f == 5 && x != "-") x = sprintf("%.1f", x / 1024)
				printf "%s%s", (c > 1 ? " → " : ""), x
			}
			printf " |"
		}
		print ""
	}
	END { if (!shown) print "None." }' "$1"
}

# khugepaged_table ARCH: what it ran to mend what the stores left, where it was measured.
khugepaged_table() {
	jq -r --arg arch "$1" '
		def k: . / 1000 | round;
		map(select(.arch == $arch and .mode == "copy" and .size_kb > 4))
		| group_by([.mode, .size_kb, .pattern])
		| map((map({key: .kernel, value: .}) | from_entries) | select(.base and .khugepaged)
			| "| \(.base.size_kb)K | \(.base.pattern) | \(.base.insns | k) | \(.khugepaged.khugepaged | if . == 0 then "does not run" elif . > 199e6 then "not done after \(k)" else k end) |")
		| if length > 0 then
			"", "### What khugepaged ran", "",
			"| folio | stores while the child lives | base | khugepaged, behind that |",
			"|---|---|--:|--:|", .[] else empty end' "$json"
}

# files_table ARCH: what fault_around_bench measured, for one page; what loses first.
files_table() {
	jq -r --arg arch "$1" '
		def per_page: .insns / .pages * 10 | round / 10;
		map(select(.arch == $arch and (has("fault_p50") | not)))
		| group_by([.mode, .size_kb, .pattern])
		| map((map({key: .kernel, value: .}) | from_entries) | select(.base and .patched)
			| .change = (100 * (.patched.insns / .base.insns - 1)))
		| sort_by(-.change)
		| if length > 0 then
			"", "### Faults on files", "",
			"| mode | folio | file system | base | patched | change | faults |",
			"|---|---|---|--:|--:|--:|--:|",
			(.[] | "| \(.base.mode) | \(.base.size_kb)K | \(.base.pattern) | \(.base | per_page) | \(.patched | per_page) | \(.change * 10 | round / 10) % | \(.base.faults) → \(.patched.faults) |") else empty end' "$json"
}

# plot ARCH MODE: bars for each pattern, a panel for each folio size.
plot() {
	local arch=$1 mode=$2 sizes cols data size i=0
	data=$tmp/$arch-$mode
	mapfile -t sizes < <(jq -r --arg a "$arch" --arg m "$mode" \
		'map(select(.arch == $a and .mode == $m and .size_kb > 4).size_kb) | unique | .[]' "$json")
	[[ ${#sizes[@]} -gt 0 ]] || return 0
	cols=$(jq -r --arg a "$arch" '(map(select(.arch == $a).kernel) | unique) as $have
		| ["base", "khugepaged", "patched", "always"] | map(select(. as $k | $have | index($k))) | join(" ")' "$json")
	{
		say "set terminal svg noenhanced size 900,$((260 * ${#sizes[@]})) font 'sans-serif,12' background '#ffffff'"
		say "set output '$tmp/$arch-$mode.svg'"
		say "set multiplot layout ${#sizes[@]},1 title '$arch, $mode: 32 MiB after fork(), lower is better'"
		say "set style data histograms; set style histogram clustered gap 1; set style fill solid 0.9 noborder"
		say "set logscale y; set grid ytics lc '#dddddd'; set key outside right; set datafile missing '-'"
		say "set ylabel 'thousand $unit'; set border 3; set tics nomirror; set yrange [5:*]"
		for size in "${sizes[@]}"; do
			jq -r --arg a "$arch" --arg m "$mode" --argjson s "$size" --arg cols "$cols" '
				["seq", "random", "memset", "1per64k", "1per2m", "2per2m", "4per2m", "8per2m", "16per2m"] as $order
				| map(select(.arch == $a and .mode == $m and .size_kb == $s))
				| . as $all | $order[] | . as $p
				| [$p] + ($cols | split(" ") | map(. as $k
					| ($all | map(select(.pattern == $p and .kernel == $k)) | .[0].insns) | if . then . / 1000 else "-" end))
				| @tsv' "$json" >"$data-$size"
			say "set title '$(((size >= 1024) ? size / 1024 : size))$( ((size >= 1024)) && echo M || echo K) folios'"
			i=1
			printf 'plot '
			for col in $cols; do
				i=$((i + 1))
				((i == 2)) || printf ', '
				printf "'%s' using %d:xtic(1) title '%s' lc rgb '%s'" "$data-$size" "$i" "$col" "${color[$col]}"
			done
			echo
		done
		say "unset multiplot"
	} >"$data.gp"
	run_logged "plot-$arch-$mode" gnuplot "$data.gp"
	put_file "$RESULTS/$arch-$mode.svg" <"$tmp/$arch-$mode.svg"
	say "![$arch, $mode]($arch-$mode.svg)" >>"$tmp/plots"
}

# readme_table: a choice of the rows for README.md, those that lose first.
readme_table() {
	jq -r '
		def commas: tostring | explode | reverse | [range(length) as $i | (if $i > 0 and $i % 3 == 0 then 44 else empty end), .[$i]] | reverse | implode;
		def k: . / 1000 | round | commas;
		{reuse: "child is gone", copy: "child lives", last: "child is gone, a part is left", zero: "no fork(), read before"} as $when
		| {seq: "all pages, sequential", random: "all pages, random", "1per64k": "one per 64K", "1per2m": "one per 2M",
		   "2per2m": "2 per 2M", "4per2m": "4 per 2M", "8per2m": "8 per 2M", "16per2m": "16 per 2M",
		   "1of32": "all of 1/32", "6of32": "all of 6/32", "6of32-random": "all of 6/32, scattered"} as $stores
		| [["reuse", 2048, "seq random 1per64k 1per2m 2per2m 4per2m 8per2m 16per2m"], ["reuse", 64, "seq 1per64k 1per2m"], ["reuse", 4, "seq"],
		   ["copy", 2048, "seq random 1per64k 1per2m 2per2m 4per2m 8per2m 16per2m"], ["copy", 64, "seq 1per64k 1per2m"], ["copy", 4, "seq"],
		   ["last", 2048, "1of32 6of32 6of32-random"], ["zero", 1024, "1per2m"], ["zero", 64, "seq 1per64k 1per2m"], ["zero", 4, "seq"]] as $wanted
		| map(select(.arch == "x86_64")) as $all
		| [$wanted[] | . as [$mode, $size, $patterns] | $patterns | split(" ")[] | . as $pattern
			| ($all | map(select(.mode == $mode and .size_kb == $size and .pattern == $pattern))
				| map({key: .kernel, value: .}) | from_entries) | select(.base and .patched)]
		| sort_by(-.patched.insns / .base.insns)
		| "| | folios | stores | Linux 7.3 | patched | faults | MiB used |",
		  "|---|---|---|--:|--:|--:|--:|",
		  (.[] | "| \($when[.base.mode]) | \(.base.size_kb | if . >= 1024 then "\(. / 1024)M" else "\(.)K" end) | \($stores[.base.pattern]) | \(.base.insns | k) | \(.patched.insns | k) | \(.base.faults | commas) → \(.patched.faults | commas) | \([.base.used_kb, .patched.used_kb] | map(. / 102.4 | round / 10 | if . == 0 then 0 else . end) | "\(.[0]) → \(.[1])") |")' "$json"
}

declare -A color=([base]='#888888' [khugepaged]='#c9a227' [patched]='#2364aa' [always]='#d1495b')
tmp=$(mktemp -d "$BUILD/report.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
unit=instructions
[[ $(jq -r '.[0].unit // "insns"' "$json") != ns ]] || unit=ns
{
	cat <<-TEXT
	# What a write fault after fork() costs

	cow_bench maps 32 MiB in folios of one size, forks, and stores to some of the
	pages: in mode \`reuse\` the child is gone by then, in mode \`copy\` it lives; folios of that
	and of all smaller sizes are enabled then. In mode \`last\`, most of each folio was unmapped
	before, and what is left is stored to: memory that is given back is negative. In mode
	\`zero\`, there was no fork(), but all pages were read before. In mode \`child\`, fork()
	itself is measured, with
	a child that stores to eight pages and exits or calls exec. The columns are thousands
	of guest instructions for all stores; the others are the numbers of one fault (with →
	between the columns) in instructions, and the memory used in the end.

	\`patched\` is the series as it is by default; \`always\` copies a block of 64K in each fault
	of mode \`copy\` (debugfs cow/copy). \`khugepaged\` is the base with a khugepaged that never
	sleeps. In mode \`copy\` it gets at least 200 million instructions behind the stores to put
	all into huge pages again, which the last table shows. It does nothing where huge
	pages of PMD size (2M) are not enabled.

	The table of faults on files is of fault_around_bench, and shows instructions for one
	page of 32 MiB in the page cache: mode \`map\` is read faults that map what is around
	the address, \`fault\` is read faults that do not, \`write\` and \`cow\` are write
	faults on shared and private mappings, and \`unmap\` is munmap() behind these. A file
	system is marked \`nested\` where the process is in a cgroup three levels below the
	root. Rows \`anon\` have no file.

	    ${BENCH_ARGS:+BENCH_ARGS=\"$BENCH_ARGS\" }make bench

	boots each kernel (CONFIG=bench) with \`qemu -icount shift=0,sleep=off\`, one CPU, and
	\`-cpu max,-erms,-fsrm\`, so that CLOCK_MONOTONIC counts the instructions that the guest
	executed. The median of nine rounds (the default) repeats to 0.1 %; with three rounds,
	a timer tick can add up to 2 % to a row of few stores.

	**An instruction count is not time.** Caches, TLB misses, copy bandwidth, lock
	contention and the price of an exception on real hardware are not in it: a fault
	saved is worth more than its instructions, and a byte copied costs more than its own.
	It shows how much work the kernel does, exactly, on any machine.
	TEXT
	for arch in $(jq -r 'map(.arch) | unique | .[]' "$json"); do
		rows "$arch" >"$tmp/rows"
		say
		say "## $arch"
		say
		say "### Rows that lose"
		say
		table "$tmp/rows" 'change != "-" && change > 0.5'
		say
		say "### Unchanged within 0.5 %"
		say
		table "$tmp/rows" 'change != "-" && change <= 0.5 && change >= -0.5'
		say
		say "### Rows that win"
		say
		table "$tmp/rows" 'change == "-" || change < -0.5'
		khugepaged_table "$arch"
		files_table "$arch"
	done
} >"$tmp/readme"
: >"$tmp/plots"
for arch in $(jq -r 'map(.arch) | unique | .[]' "$json"); do
	for mode in reuse copy; do
		plot "$arch" "$mode"
	done
done
{
	cat "$tmp/readme"
	say
	cat "$tmp/plots"
} | put_file "$RESULTS/README.md"
# README.md of the project shows a part of the project's own results.
if [[ $RESULTS == "$ROOT/results" ]]; then
	readme_table >"$tmp/readme-table"
	awk -v table="$tmp/readme-table" '
		/^<!-- table -->$/ { print; while ((getline line <table) > 0) print line; skip = 1 }
		/^<!-- \/table -->$/ { skip = 0 }
		!skip' "$ROOT/README.md" >"$tmp/readme-new"
	put_file "$ROOT/README.md" <"$tmp/readme-new"
fi
say "results: $RESULTS/README.md"
