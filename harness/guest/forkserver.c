// SPDX-License-Identifier: GPL-2.0
/*
 * forkserver - what a server pays that forks workers from a warmed heap.
 *
 * The heap is 32 MiB in folios of one size (2M: mapped by PTEs). A worker stores to a
 * few pages of it and exits or calls exec. The server stores to a few pages for each
 * worker, too: while it is alive, or when it is gone. One JSON object a line and
 * measurement; the unit is what CLOCK_MONOTONIC counts: nanoseconds, or, with -i,
 * guest instructions under "qemu -icount shift=0,sleep=off".
 *
 *	-k NAME		name of the kernel, for the records
 *	-n NUMBER	workers for each measurement (1000)
 *	-m NAME		one of the measurements, as in 64K-exit-random-alive
 *	-i		the clock counts instructions
 *	-l		list the measurements
 *
 * As root: sizes are switched on in /sys/kernel/mm/transparent_hugepage, and as they
 * were in the end.
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "folios.h"

#define HEAP_SIZE	(32UL << 20)
#define HEAP_PAGES	(HEAP_SIZE / 4096)
#define PMD_SIZE	(2UL << 20)
#define WORKER_STORES	8
#define SERVER_STORES	8
#define STEPS		10	/* points of a curve */

enum stores {
	STORES_COUNTERS,	/* always the same pages */
	STORES_APPEND,		/* the next pages, as in a log */
	STORES_RANDOM,		/* any pages */
	NR_STORES
};

static const char * const stores_names[] = { "counters", "append", "random" };
static const unsigned int sizes_kb[] = { 4, 64, 2048 };

struct row {
	unsigned int size_kb;
	bool exec;
	enum stores stores;
	bool alive;
};

/* All costs are sums. */
struct result {
	uint64_t fork, store, rest;
	uint64_t fork_step[STEPS];
	unsigned long whole_kb[STEPS + 1];	/* in folios of that size, none missing a page */
	unsigned long large_kb[STEPS + 1];	/* in folios that are larger than a page */
	unsigned long faults, worker_faults;
	long used_kb;
};

static struct {
	const char *kernel;
	const char *only;
	unsigned int forks;
	bool insns;
	bool list;
} opts = { .kernel = "this", .forks = 1000 };

static const char *self;
static char *heap;
static unsigned int next_page;
static uint64_t server_seed, worker_seed;

static uint64_t now(void)
{
	static struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* xorshift64: the same pages in the same order on every kernel. */
static unsigned int next_random(uint64_t *seed, unsigned int below)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed % below;
}

static void store(unsigned int page)
{
	*(volatile char *)(heap + page * 4096UL) = 2;
}

static unsigned long faults(int who)
{
	static struct rusage ru;

	getrusage(who, &ru);
	return ru.ru_minflt;
}

/* Pages on the lists of a CPU are free, but MemFree does not count them. */
static long free_kb(void)
{
	FILE *f = fopen("/proc/zoneinfo", "re");
	unsigned long pages = 0, nr;
	char line[256];

	if (!f)
		err(1, "/proc/zoneinfo");
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, " nr_free_pages %lu", &nr) == 1 ||
		    sscanf(line, " count: %lu", &nr) == 1)
			pages += nr;
	}
	fclose(f);
	return pages * 4;
}

static void count_heap(unsigned int size_kb, unsigned long *whole_kb, unsigned long *large_kb)
{
	static struct folio_walk walk;
	static struct folio_count count;

	memset(&count, 0, sizeof(count));
	walk_open(&walk, "/proc/self/pagemap");
	walk_range(&walk, (uintptr_t)heap, (uintptr_t)heap + HEAP_SIZE, &count);
	walk_close(&walk);
	*whole_kb = count.whole[__builtin_ctz(size_kb / 4)] * 4;
	*large_kb = 0;
	for (int order = 1; order < FOLIOS_ORDERS; order++)
		*large_kb += count.pages[order] * 4;
}

/* The setting in brackets is the active one. */
static void read_switch(const char *path, char *value, size_t size)
{
	int fd = open_file(path);
	char *start, *end, line[64];
	ssize_t len = read(fd, line, sizeof(line) - 1);

	close(fd);
	line[len < 0 ? 0 : len] = '\0';
	start = strchr(line, '[');
	end = strchr(line, ']');
	if (!start || !end)
		errx(1, "%s: not understood", path);
	*end = '\0';
	snprintf(value, size, "%s", start + 1);
}

static void write_switch(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		err(1, "%s (root is needed)", path);
	close(fd);
}

/* What was set before; nothing is in value[] where there is no such size. */
static struct {
	char path[80];
	char value[16];
} switches[FOLIOS_ORDERS];

static void save_switches(void)
{
	for (int order = 2; order < FOLIOS_ORDERS; order++) {
		snprintf(switches[order].path, sizeof(switches[order].path),
			 "/sys/kernel/mm/transparent_hugepage/hugepages-%ukB/enabled", 4U << order);
		if (!access(switches[order].path, R_OK))
			read_switch(switches[order].path, switches[order].value,
				    sizeof(switches[order].value));
	}
}

static void restore_switches(void)
{
	for (int order = 2; order < FOLIOS_ORDERS; order++)
		if (*switches[order].value)
			write_switch(switches[order].path, switches[order].value);
}

/* Workers come here as well, and do no harm. */
static void on_signal(int sig)
{
	restore_switches();
	_exit(128 + sig);
}

/* Sizes up to this one: what is copied later may be smaller. */
static void use_size(unsigned int size_kb)
{
	for (int order = 2; order < FOLIOS_ORDERS; order++)
		if (*switches[order].value)
			write_switch(switches[order].path,
				     4U << order <= size_kb ? "always" : "never");
}

static void try_map_heap(unsigned int size_kb)
{
	char *map = mmap(NULL, HEAP_SIZE + PMD_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (map == MAP_FAILED)
		err(1, "mmap");
	heap = (char *)(((uintptr_t)map + PMD_SIZE - 1) & ~(PMD_SIZE - 1));
	munmap(map, heap - map);
	munmap(heap + HEAP_SIZE, map + PMD_SIZE - heap);
	memset(heap, 1, HEAP_SIZE);
	/* A PMD mapping is replaced by PTEs when a part of it gets other permissions. */
	for (unsigned long off = 0; size_kb == 2048 && off < HEAP_SIZE; off += PMD_SIZE)
		if (mprotect(heap + off, 4096, PROT_READ) ||
		    mprotect(heap + off, 4096, PROT_READ | PROT_WRITE))
			err(1, "mprotect");
}

static void map_heap(unsigned int size_kb)
{
	unsigned long whole_kb, large_kb;

	use_size(size_kb);
	for (int tries = 0; tries < 3; tries++) {
		try_map_heap(size_kb);
		count_heap(size_kb, &whole_kb, &large_kb);
		if (whole_kb == HEAP_SIZE >> 10)
			return;
		munmap(heap, HEAP_SIZE);
		write_switch("/proc/sys/vm/compact_memory", "1");
	}
	errx(1, "no folios of %u kB to be had; free some memory", size_kb);
}

/* It waits until the server closes its end of the pipe. */
static void worker(const struct row *row, int fd)
{
	static char c;

	if (read(fd, &c, 1))
		_exit(1);
	for (int i = 0; i < WORKER_STORES; i++)
		store(next_random(&worker_seed, HEAP_PAGES));
	if (row->exec)
		execl(self, self, "-x", NULL);
	_exit(row->exec);
}

static void server_stores(const struct row *row, struct result *res)
{
	const uint64_t start = now();

	for (unsigned int i = 0; i < SERVER_STORES; i++) {
		switch (row->stores) {
		case STORES_COUNTERS:
			store(HEAP_PAGES / SERVER_STORES * i + 37 * i);
			break;
		case STORES_APPEND:
			store(next_page++ % HEAP_PAGES);
			break;
		default:
			store(next_random(&server_seed, HEAP_PAGES));
		}
	}
	res->store += now() - start;
}

static uint64_t serve_one(const struct row *row, struct result *res)
{
	static int fds[2], status;	/* not on the stack, which is shared by then */
	uint64_t start, forked;
	pid_t pid;

	if (pipe(fds))
		err(1, "pipe");
	start = now();
	pid = fork();
	if (!pid) {
		close(fds[1]);
		worker(row, fds[0]);
	}
	forked = now();
	if (pid < 0)
		err(1, "fork");
	close(fds[0]);
	if (row->alive)
		server_stores(row, res);
	next_random(&worker_seed, 2);	/* each worker has other pages */
	res->rest -= now();
	close(fds[1]);
	if (waitpid(pid, &status, 0) != pid || status)
		errx(1, "a worker ended with status 0x%x", status);
	res->rest += now();
	if (!row->alive)
		server_stores(row, res);
	return forked - start;
}

static void measure(const struct row *row, struct result *res)
{
	unsigned long faults_before, worker_before;
	long free_before;

	server_seed = 88172645463325252ULL;
	worker_seed = server_seed;
	next_page = 0;
	map_heap(row->size_kb);
	free_before = free_kb();
	faults_before = faults(RUSAGE_SELF);
	worker_before = faults(RUSAGE_CHILDREN);
	count_heap(row->size_kb, &res->whole_kb[0], &res->large_kb[0]);
	for (unsigned int step = 0; step < STEPS; step++) {
		for (unsigned int i = 0; i < opts.forks / STEPS; i++)
			res->fork_step[step] += serve_one(row, res);
		res->fork += res->fork_step[step];
		count_heap(row->size_kb, &res->whole_kb[step + 1], &res->large_kb[step + 1]);
	}
	res->faults = faults(RUSAGE_SELF) - faults_before;
	res->worker_faults = faults(RUSAGE_CHILDREN) - worker_before;
	res->used_kb = free_before - free_kb();
	munmap(heap, HEAP_SIZE);
}

static void print_curve(const char *name, const unsigned long *v)
{
	printf(",\"%s\":[", name);
	for (int i = 0; i <= STEPS; i++)
		printf("%s%lu", i ? "," : "", v[i]);
	putchar(']');
}

static void print_result(const struct row *row, const struct result *res)
{
	printf("{\"kernel\":\"%s\",\"size_kb\":%u,\"end\":\"%s\",\"stores\":\"%s\",",
	       opts.kernel, row->size_kb, row->exec ? "exec" : "exit",
	       stores_names[row->stores]);
	printf("\"when\":\"%s\",\"unit\":\"%s\",\"forks\":%u,", row->alive ? "alive" : "gone",
	       opts.insns ? "insns" : "ns", opts.forks / STEPS * STEPS);
	printf("\"fork\":%llu,\"store\":%llu,\"rest\":%llu,",
	       (unsigned long long)res->fork, (unsigned long long)res->store,
	       (unsigned long long)res->rest);
	printf("\"faults\":%lu,\"worker_faults\":%lu,\"used_kb\":%ld,\"fork_step\":[",
	       res->faults, res->worker_faults, res->used_kb);
	for (int i = 0; i < STEPS; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)res->fork_step[i]);
	putchar(']');
	print_curve("whole_kb", res->whole_kb);
	print_curve("large_kb", res->large_kb);
	puts("}");
	fflush(stdout);
}

/* With small pages and with exec, one kind of stores will do. */
static bool is_wanted(const struct row *row)
{
	if ((row->size_kb == 4 || row->exec) && row->stores != STORES_APPEND)
		return false;
	if (row->size_kb == 4 && row->exec)
		return false;
	return true;
}

static void row_name(const struct row *row, char *name, size_t size)
{
	const bool mega = row->size_kb >= 1024;

	snprintf(name, size, "%u%c-%s-%s-%s", mega ? row->size_kb / 1024 : row->size_kb,
		 mega ? 'M' : 'K', row->exec ? "exec" : "exit", stores_names[row->stores],
		 row->alive ? "alive" : "gone");
}

static void measure_row(unsigned int i)
{
	const struct row row = {
		.alive = i % 2,
		.exec = i / 2 % 2,
		.stores = i / 4 % NR_STORES,
		.size_kb = sizes_kb[i / 4 / NR_STORES],
	};
	struct result res = { 0 };
	char name[64];

	row_name(&row, name, sizeof(name));
	if (!is_wanted(&row) || (opts.only && strcmp(opts.only, name)))
		return;
	if (opts.list) {
		puts(name);
		return;
	}
	measure(&row, &res);
	print_result(&row, &res);
}

static void parse(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "k:n:m:ilx")) != -1) {
		switch (c) {
		case 'k':
			opts.kernel = optarg;
			break;
		case 'n':
			opts.forks = atoi(optarg);
			break;
		case 'm':
			opts.only = optarg;
			break;
		case 'i':
			opts.insns = true;
			break;
		case 'l':
			opts.list = true;
			break;
		case 'x':
			_exit(0);
		default:
			exit(2);
		}
	}
	if (opts.forks < STEPS)
		errx(2, "-n: %d at least", STEPS);
}

int main(int argc, char **argv)
{
	self = argv[0];
	parse(argc, argv);
	if (!opts.list)
		save_switches();
	atexit(restore_switches);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	for (unsigned int i = 0; i < 4 * NR_STORES * sizeof(sizes_kb) / sizeof(sizes_kb[0]); i++)
		measure_row(i);
	return 0;
}
