// SPDX-License-Identifier: GPL-2.0
/*
 * What the write faults after fork() cost.
 *
 * Maps 32 MiB in folios of one size, forks, lets the child exit ("reuse") or
 * keeps it alive ("copy"), and stores to some of the pages.  Reports the cost
 * of all stores, the distribution of the cost of the stores that faulted, and
 * the memory that the stores used up.  One JSON object a line and measurement.
 *
 * "last" unmaps most of each folio when the child is gone, and stores to the pages
 * that are left: memory may be given back. With "-shrink", what the shrinker of
 * partially mapped folios takes is a part of that (drop_caches calls it).
 *
 * "zero" reads all of a new area before, so that the zero page is mapped there.
 *
 * "child" measures fork() itself, with a child that stores to a few pages and
 * exits or calls exec.  With -m refork, the next fork() is measured, after such
 * stores without a child: it is cheap where the PTEs still form contpte blocks
 * (arm64).
 *
 * "khugepaged" is what the kernel thread of that name ran meanwhile; if there is one
 * CPU, it is a part of the cost of the stores.  With -w, it also is what it ran in
 * mode "copy" after the stores, until all of the area is mapped by PMDs again.
 *
 * The unit is whatever CLOCK_MONOTONIC counts: nanoseconds, or, with -i, guest
 * instructions under "qemu -icount shift=0,sleep=off".
 *
 * Not run by run_vmtests.sh: it measures and cannot fail but for its setup.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kselftest.h"
#include "hugepage_settings.h"
#include "vm_util.h"

#define AREA_SIZE	(32UL << 20)
#define MAX_PAGES	(AREA_SIZE / 4096)
#define MAX_ROUNDS	99

/* So many pages does the short-lived child store to. */
#define CHILD_STORES	8

enum mode {
	MODE_REUSE, MODE_COPY, MODE_LAST, MODE_ZERO, MODE_CHILD, MODE_REFORK, NR_MODES
};

static const char * const mode_names[] = {
	"reuse", "copy", "last", "zero", "child", "refork"
};

struct pattern {
	const char *name;
	unsigned long every;	/* stores "nr" times in so many bytes */
	unsigned int nr;	/* 0: to each page */
	bool random;
	bool fill;		/* memset() instead of single stores */
	bool exec;		/* the child ends with exec */
	unsigned int left;	/* of 32 parts of a folio, so many stay mapped */
	bool shrink;		/* then have the shrinker split folios */
};

static const struct pattern patterns[] = {
	{ .name = "seq" },
	{ .name = "random", .random = true },
	{ .name = "memset", .fill = true },
	{ .name = "1per64k", .every = 64UL << 10, .nr = 1 },
	{ .name = "1per2m", .every = 2UL << 20, .nr = 1, .random = true },
	{ .name = "2per2m", .every = 2UL << 20, .nr = 2, .random = true },
	{ .name = "4per2m", .every = 2UL << 20, .nr = 4, .random = true },
	{ .name = "8per2m", .every = 2UL << 20, .nr = 8, .random = true },
	{ .name = "16per2m", .every = 2UL << 20, .nr = 16, .random = true },
};

/* What is left in MODE_LAST: the first pages of each folio, or any. */
static const struct pattern last_patterns[] = {
	{ .name = "1of32", .left = 1 },
	{ .name = "3of32", .left = 3 },
	{ .name = "6of32", .left = 6 },
	{ .name = "12of32", .left = 12 },
	{ .name = "1of32-random", .left = 1, .random = true },
	{ .name = "3of32-random", .left = 3, .random = true },
	{ .name = "6of32-random", .left = 6, .random = true },
	{ .name = "12of32-random", .left = 12, .random = true },
	{ .name = "1of32-shrink", .left = 1, .shrink = true },
	{ .name = "3of32-shrink", .left = 3, .shrink = true },
	{ .name = "6of32-shrink", .left = 6, .shrink = true },
	{ .name = "12of32-shrink", .left = 12, .shrink = true },
	{ .name = "6of32-random-shrink", .left = 6, .random = true, .shrink = true },
	{ .name = "12of32-random-shrink", .left = 12, .random = true, .shrink = true },
};

/* What the child of MODE_CHILD does. */
static const struct pattern child_patterns[] = {
	{ .name = "exit", .every = AREA_SIZE / CHILD_STORES, .nr = 1, .random = true },
	{ .name = "exec", .every = AREA_SIZE / CHILD_STORES, .nr = 1, .random = true,
	  .exec = true },
};

static const unsigned int sizes_kb[] = { 4, 16, 64, 1024, 2048 };

/* What one run over the area found. */
struct sample {
	unsigned long faults;
	uint64_t total;
	uint64_t p50, p99, max;
	uint64_t khugepaged;
	long used_kb;
};

static struct {
	const char *kernel;
	const char *mode;
	const char *pattern;
	unsigned int size_kb;
	unsigned int rounds;
	unsigned int wait_ms;
	bool insns;
} opts = { .rounds = 3 };

static unsigned int order[MAX_PAGES];
static uint64_t cost[MAX_PAGES];
static uint64_t seed;

/*
 * Buffers are static, here and below: then it does not depend on the layout of the
 * stack which call is the one that takes the fault on them after fork().
 */
static uint64_t now(void)
{
	static struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static pid_t find_khugepaged(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	char path[280], comm[32];
	pid_t pid = 0;

	while (proc && !pid && (entry = readdir(proc))) {
		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		if (atoi(entry->d_name) && read_file(path, comm, sizeof(comm)) &&
		    !strcmp(comm, "khugepaged\n"))
			pid = atoi(entry->d_name);
	}
	if (proc)
		closedir(proc);
	return pid;
}

/* How long it ran so far; 0 if there is none. */
static uint64_t khugepaged_time(void)
{
	struct timespec ts;
	clockid_t clock;
	pid_t pid = find_khugepaged();

	if (!pid || clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &ts))
		return 0;
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static unsigned long minor_faults(void)
{
	static struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_minflt;
}

/* xorshift64: the same pages in the same order on every kernel. */
static unsigned int next_random(unsigned int below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

static void shuffle(unsigned int *v, unsigned int nr)
{
	while (nr > 1) {
		unsigned int j = next_random(nr--);
		unsigned int tmp = v[nr];

		v[nr] = v[j];
		v[j] = tmp;
	}
}

/*
 * So many pages after one another form a group, and @nr of each are stored to. Of a
 * folio of which something is left, it is one page at least.
 */
static unsigned int pattern_group(const struct pattern *pat, unsigned int size_kb,
				  unsigned int *nr)
{
	const unsigned int nr_pages = AREA_SIZE / psize();
	const unsigned int folio_nr = (size_kb << 10) / psize();

	if (pat->left) {
		*nr = folio_nr * pat->left / 32 ?: 1;
		return folio_nr;
	}
	*nr = pat->nr ?: nr_pages;
	return pat->nr ? pat->every / psize() : nr_pages;
}

/* The pages that @pat stores to go to order[], and their number is returned. */
static unsigned int fill_order(const struct pattern *pat, unsigned int size_kb)
{
	const unsigned int nr_pages = AREA_SIZE / psize();
	unsigned int picks[MAX_PAGES], nr_picks, nr = 0;
	const unsigned int group = pattern_group(pat, size_kb, &nr_picks);

	seed = 88172645463325252ULL;
	for (unsigned int start = 0; start < nr_pages; start += group) {
		for (unsigned int i = 0; i < group; i++)
			picks[i] = start + i;
		if (pat->random)
			shuffle(picks, group);
		for (unsigned int i = 0; i < nr_picks; i++)
			order[nr++] = picks[i];
	}
	if (pat->random)
		shuffle(order, nr);
	return nr;
}

/*
 * Free memory of the system.  Pages on the per-CPU lists are free as well, but
 * MemFree does not count them.
 */
static long free_kb(void)
{
	unsigned long pages = 0, nr;
	char line[256];
	FILE *f;

	f = fopen("/proc/zoneinfo", "r");
	if (!f)
		ksft_exit_fail_perror("/proc/zoneinfo");
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, " nr_free_pages %lu", &nr) == 1 ||
		    sscanf(line, " count: %lu", &nr) == 1)
			pages += nr;
	}
	fclose(f);
	return pages * (psize() >> 10);
}

/*
 * Allow folios of all sizes up to this one: first-touch faults take the largest, and
 * what is copied later may be smaller.
 */
static void use_folio_size(unsigned int size_kb)
{
	const int order = size_kb << 10 > psize() ? sz2ord(size_kb << 10, psize()) : 0;
	struct thp_settings settings;

	thp_read_settings(&settings);
	settings.thp_enabled = THP_MADVISE;
	for (int i = 0; i < NR_ORDERS; i++)
		settings.hugepages[i].enabled =
			i > 1 && i <= order ? THP_ALWAYS : THP_NEVER;
	thp_write_settings(&settings);
}

/* A PMD mapping is replaced by PTEs when a part of it gets other permissions. */
static void map_by_ptes(char *area)
{
	const uint64_t pmd_size = read_pmd_pagesize();

	for (unsigned long off = 0; off < AREA_SIZE; off += pmd_size) {
		if (mprotect(area + off, psize(), PROT_READ) ||
		    mprotect(area + off, psize(), PROT_READ | PROT_WRITE))
			ksft_exit_fail_perror("mprotect");
	}
}

/* Where the first page is that is not in a folio of this size; AREA_SIZE: nowhere. */
static unsigned long wrong_folio(char *area, unsigned int size_kb)
{
	const unsigned long size = (unsigned long)size_kb << 10;
	int pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	unsigned long off, first = 0;

	if (pagemap_fd < 0)
		ksft_exit_fail_perror("/proc/self/pagemap");
	for (off = 0; off < AREA_SIZE; off += psize()) {
		unsigned long pfn = pagemap_get_pfn(pagemap_fd, area + off);

		if (!(off % size))
			first = pfn;
		if (first % (size / psize()) || pfn != first + off % size / psize())
			break;
	}
	close(pagemap_fd);
	return off;
}

static char *reserve_area(void)
{
	const uint64_t align = read_pmd_pagesize();
	char *map, *area;

	map = mmap(NULL, AREA_SIZE + align, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	area = (char *)(((uintptr_t)map + align - 1) & ~(align - 1));
	if (area > map)
		munmap(map, area - map);
	munmap(area + AREA_SIZE, map + align - area);
	return area;
}

static char *try_map_area(unsigned int size_kb)
{
	char *area = reserve_area();

	memset(area, 1, AREA_SIZE);
	if (size_kb << 10 == read_pmd_pagesize())
		map_by_ptes(area);
	return area;
}

/* Zero pages only; small ones, as the area has to be mapped by PTEs. */
static char *map_zero_area(void)
{
	char *area = reserve_area();

	for (unsigned long off = 0; off < AREA_SIZE; off += psize())
		FORCE_READ(area[off]);
	return area;
}

/* Every folio of the area must have the size that the record will claim. */
static char *map_area(unsigned int size_kb)
{
	unsigned long off;
	char *area;

	for (int tries = 0; tries < 3; tries++) {
		area = try_map_area(size_kb);
		off = wrong_folio(area, size_kb);
		if (off == AREA_SIZE)
			return area;
		munmap(area, AREA_SIZE);
		write_file("/proc/sys/vm/compact_memory", "1", 2);
	}
	ksft_exit_fail_msg("folio of %u kB expected at 0x%lx\n", size_kb, off);
}

/* The child lives until the returned descriptor is closed, or exits at once. */
static pid_t fork_child(enum mode mode, int *live_fd)
{
	int fds[2];
	char c;
	pid_t pid;

	if (pipe(fds))
		ksft_exit_fail_perror("pipe");
	pid = fork();
	if (pid < 0)
		ksft_exit_fail_perror("fork");
	if (!pid) {
		close(fds[1]);
		if (mode == MODE_COPY && read(fds[0], &c, 1))
			_exit(1);
		_exit(0);
	}
	close(fds[0]);
	*live_fd = fds[1];
	if (mode != MODE_COPY)
		waitpid(pid, NULL, 0);
	return pid;
}

static void end_child(enum mode mode, pid_t pid, int live_fd)
{
	close(live_fd);
	if (mode == MODE_COPY)
		waitpid(pid, NULL, 0);
}

static void store_all(char *area, const struct pattern *pat, unsigned int nr)
{
	const unsigned int shift = pshift();

	if (pat->fill) {
		memset(area, 2, AREA_SIZE);
		return;
	}
	for (unsigned int i = 0; i < nr; i++)
		*(volatile char *)(area + ((unsigned long)order[i] << shift)) = 2;
}

/* Unmap the pages that will not be stored to. */
static void unmap_others(char *area, unsigned int nr)
{
	static bool left[MAX_PAGES];

	memset(left, false, sizeof(left));
	for (unsigned int i = 0; i < nr; i++)
		left[order[i]] = true;
	for (unsigned int start = 0, end; start < AREA_SIZE / psize(); start = end) {
		end = start + 1;
		while (end < AREA_SIZE / psize() && left[end] == left[start])
			end++;
		if (!left[start] && madvise(area + start * psize(),
					    (end - start) * psize(), MADV_DONTNEED))
			ksft_exit_fail_perror("MADV_DONTNEED");
	}
}

static int cmp_u64(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/*
 * fork() write-protected stack and data as well: take the faults on what is called
 * next, so that they are not counted.
 */
static void warm_up(char *area)
{
	static const struct pattern none = { .name = "none" };

	store_all(area, &none, 0);
	minor_faults();
	now();
}

/* The stores one by one: the cost of those that faulted goes to @s. */
static void time_faults(char *area, unsigned int nr, struct sample *s)
{
	const unsigned int shift = pshift();
	unsigned int nr_faults = 0;

	warm_up(area);
	for (unsigned int i = 0; i < nr; i++) {
		volatile char *p = area + ((unsigned long)order[i] << shift);
		unsigned long faults = minor_faults();
		uint64_t start = now();

		*p = 3;
		cost[nr_faults] = now() - start;
		if (minor_faults() != faults)
			nr_faults++;
	}
	if (!nr_faults)
		return;
	qsort(cost, nr_faults, sizeof(*cost), cmp_u64);
	s->p50 = cost[nr_faults / 2];
	s->p99 = cost[nr_faults * 99UL / 100];
	s->max = cost[nr_faults - 1];
}

static void time_total(char *area, const struct pattern *pat, unsigned int nr,
		       struct sample *s)
{
	uint64_t khugepaged = khugepaged_time();
	long free_before = free_kb();
	unsigned long faults;
	uint64_t total;

	warm_up(area);
	faults = minor_faults();
	total = now();
	store_all(area, pat, nr);
	if (pat->shrink)
		write_file("/proc/sys/vm/drop_caches", "2", 2);
	total = now() - total;
	faults = minor_faults() - faults;

	s->total = total;
	s->faults = faults;
	s->used_kb = free_before - free_kb();
	s->khugepaged = khugepaged_time() - khugepaged;
}

/* What khugepaged runs until all of the area is huge pages, or time is up. */
static uint64_t wait_for_khugepaged(char *area)
{
	const uint64_t pmd_size = read_pmd_pagesize();
	const uint64_t before = khugepaged_time();

	for (unsigned int ms = 0; ms < opts.wait_ms; ms++) {
		if (check_huge_anon(area, AREA_SIZE,
				    AREA_SIZE / pmd_size, pmd_size))
			break;
		usleep(1000);
	}
	return khugepaged_time() - before;
}

static void time_fork(char *area, const struct pattern *pat, unsigned int nr,
		      struct sample *s)
{
	unsigned long faults;
	uint64_t total;
	pid_t pid;

	store_all(area, pat, nr);
	warm_up(area);
	faults = minor_faults();
	total = now();
	pid = fork();
	if (!pid)
		_exit(0);
	total = now() - total;
	faults = minor_faults() - faults;

	s->total = total;
	s->faults = faults;
	waitpid(pid, NULL, 0);
}

/* From fork() to the end of a child that stores to @nr pages. */
static void time_child(char *area, const struct pattern *pat, unsigned int nr,
		       struct sample *s)
{
	unsigned long faults;
	uint64_t total;
	pid_t pid;

	warm_up(area);
	faults = minor_faults();
	total = now();
	pid = fork();
	if (!pid) {
		store_all(area, pat, nr);
		if (pat->exec)
			execl("/proc/self/exe", "cow_bench", "-x", NULL);
		_exit(pat->exec);
	}
	waitpid(pid, NULL, 0);
	total = now() - total;
	faults = minor_faults() - faults;

	s->total = total;
	s->faults = faults;
}

static struct sample run_once(enum mode mode, unsigned int size_kb,
			      const struct pattern *pat)
{
	const unsigned int nr = fill_order(pat, size_kb);
	struct sample s = {};

	for (int single = 0; single <= (mode < MODE_CHILD); single++) {
		char *area = mode == MODE_ZERO ? map_zero_area() : map_area(size_kb);
		int live_fd;
		pid_t pid = fork_child(mode, &live_fd);

		if (mode == MODE_LAST)
			unmap_others(area, nr);
		if (mode == MODE_CHILD)
			time_child(area, pat, nr, &s);
		else if (mode == MODE_REFORK)
			time_fork(area, pat, nr, &s);
		else if (single)
			time_faults(area, nr, &s);
		else
			time_total(area, pat, nr, &s);
		if (mode == MODE_COPY && !single)
			s.khugepaged += wait_for_khugepaged(area);
		end_child(mode, pid, live_fd);
		munmap(area, AREA_SIZE);
	}
	return s;
}

static int cmp_sample(const void *a, const void *b)
{
	return cmp_u64(&((const struct sample *)a)->total,
		       &((const struct sample *)b)->total);
}

static void print_record(enum mode mode, unsigned int size_kb,
			 const struct pattern *pat, const struct sample *s)
{
	struct utsname uts;
	bool x86;

	uname(&uts);
	x86 = !strcmp(uts.machine, "x86_64");
	printf("{\"arch\":\"%s\",\"kernel\":\"%s\",\"mode\":\"%s\",\"size_kb\":%u,\"pattern\":\"%s\",",
	       x86 ? "x86_64" : "arm64", opts.kernel ?: uts.release,
	       mode_names[mode], size_kb, pat->name);
	printf("\"pages\":%lu,\"faults\":%lu,\"insns\":%llu,",
	       AREA_SIZE / psize(), s->faults, (unsigned long long)s->total);
	printf("\"fault_p50\":%llu,\"fault_p99\":%llu,\"fault_max\":%llu,",
	       (unsigned long long)s->p50, (unsigned long long)s->p99,
	       (unsigned long long)s->max);
	printf("\"used_kb\":%ld,\"khugepaged\":%llu%s}\n",
	       s->used_kb, (unsigned long long)s->khugepaged,
	       opts.insns ? "" : ",\"unit\":\"ns\"");
	fflush(stdout);
}

/* The median of some rounds: a timer interrupt may hit one of them. */
static void measure(enum mode mode, unsigned int size_kb,
		    const struct pattern *pat)
{
	struct sample s[MAX_ROUNDS];

	for (unsigned int i = 0; i < opts.rounds; i++)
		s[i] = run_once(mode, size_kb, pat);
	qsort(s, opts.rounds, sizeof(*s), cmp_sample);
	print_record(mode, size_kb, pat, &s[opts.rounds / 2]);
}

static void measure_patterns(enum mode mode, unsigned int size_kb,
			     const struct pattern *pats, unsigned int nr)
{
	for (unsigned int i = 0; i < nr; i++)
		if (opts.pattern ? !strcmp(opts.pattern, pats[i].name) :
				   opts.mode || !pats[i].shrink)
			measure(mode, size_kb, &pats[i]);
}

static void measure_size(unsigned int size_kb)
{
	use_folio_size(size_kb);
	for (unsigned int mode = 0; mode < NR_MODES; mode++) {
		if (opts.mode ? strcmp(opts.mode, mode_names[mode]) : mode == MODE_REFORK)
			continue;
		if (mode == MODE_CHILD)
			measure_patterns(mode, size_kb, child_patterns,
					 ARRAY_SIZE(child_patterns));
		else if (mode == MODE_LAST && size_kb >= 64)
			measure_patterns(mode, size_kb, last_patterns,
					 ARRAY_SIZE(last_patterns));
		else if (mode == MODE_LAST ||
			 (mode == MODE_ZERO && size_kb << 10 == read_pmd_pagesize()))
			continue;
		else
			measure_patterns(mode, size_kb, patterns,
					 ARRAY_SIZE(patterns));
	}
}

static bool size_supported(unsigned int size_kb)
{
	const unsigned long size = (unsigned long)size_kb << 10;

	if (opts.size_kb && opts.size_kb != size_kb)
		return false;
	return size == psize() || (size > psize() && size <= read_pmd_pagesize() &&
		(thp_supported_orders() & (1UL << sz2ord(size, psize()))));
}

static void usage(const char *prog)
{
	fprintf(stderr,
		"usage: %s [-i] [-k kernel] [-m reuse|copy|last|zero|child|refork] [-p pattern] [-r rounds] [-s size_kb] [-w ms]\n"
		"  -i  CLOCK_MONOTONIC counts guest instructions (qemu -icount shift=0,sleep=off)\n"
		"  -k  what the records say in \"kernel\" (default: uname -r)\n"
		"  -w  after the stores, wait so long for khugepaged at most\n"
		"patterns:", prog);
	for (unsigned int i = 0; i < ARRAY_SIZE(patterns); i++)
		fprintf(stderr, " %s", patterns[i].name);
	for (unsigned int i = 0; i < ARRAY_SIZE(last_patterns); i++)
		fprintf(stderr, " %s", last_patterns[i].name);
	for (unsigned int i = 0; i < ARRAY_SIZE(child_patterns); i++)
		fprintf(stderr, " %s", child_patterns[i].name);
	fprintf(stderr, "\n");
	exit(KSFT_FAIL);
}

static void parse_options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "ik:m:p:r:s:w:x")) != -1) {
		switch (c) {
		case 'i':
			opts.insns = true;
			break;
		case 'k':
			opts.kernel = optarg;
			break;
		case 'm':
			opts.mode = optarg;
			break;
		case 'p':
			opts.pattern = optarg;
			break;
		case 'r':
			opts.rounds = atoi(optarg);
			break;
		case 's':
			opts.size_kb = atoi(optarg);
			break;
		case 'w':
			opts.wait_ms = atoi(optarg);
			break;
		case 'x':	/* what the child executes */
			_exit(0);
		default:
			usage(argv[0]);
		}
	}
	if (optind != argc || opts.rounds < 1 || opts.rounds > MAX_ROUNDS)
		usage(argv[0]);
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	if (!thp_available())
		ksft_exit_skip("Transparent Hugepages not available\n");

	memset(cost, 1, sizeof(cost));
	thp_save_settings();
	for (unsigned int i = 0; i < ARRAY_SIZE(sizes_kb); i++)
		if (size_supported(sizes_kb[i]))
			measure_size(sizes_kb[i]);
	return KSFT_PASS;
}
