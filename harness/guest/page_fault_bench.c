// SPDX-License-Identifier: GPL-2.0
/*
 * What page faults on small folios cost, as will-it-scale's page_fault tests do it:
 * tasks, processes or threads, of which each has its own area.
 *
 *	anon		first stores to anonymous memory (page_fault1)
 *	private		first stores to a private mapping of a file (page_fault2)
 *	shared		first stores to a shared mapping of a file (page_fault3)
 *	read		reads of a read-only mapping of a file, mapped around the address
 *	wp-reuse	stores to anonymous memory after fork(), the child is gone
 *	wp-copy		stores to anonymous memory after fork(), the child lives
 *	wp-private	stores to a private mapping of a file that was read before
 *	wp-zero		stores to anonymous memory that was read before
 *
 * One JSON object a line. phase is "touch", "unmap" (munmap() behind that, for the
 * first four), or "fault": a single access that faults, by one process. "insns" is what
 * CLOCK_MONOTONIC counted for 16 MiB; under "qemu -icount shift=0,sleep=off" these are
 * the guest's instructions. Of touch, from the start of all tasks to the end of the
 * last: a timer tick can only add to it, and the least of the rounds is reported. Of
 * unmap, in munmap(), of one task after the other and piece by piece: each piece has its
 * median of the rounds, so that neither ticks nor the scheduler count. Of faults, the
 * median.
 *
 * usage: page_fault_bench KERNEL DIRECTORY [ROUNDS]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOTAL_SIZE	(16UL << 20)
#define PAGE_SIZE	4096UL
#define MAX_TASKS	4
#define MAX_ROUNDS	99
#define NR_PIECES	16

enum prepare { NOTHING, LOADS, CHILD_EXITS, CHILD_LIVES };

struct test {
	const char *name;
	enum prepare prepare;
	bool file;
	bool shared;
	bool load;
};

static const struct test tests[] = {
	{ .name = "anon" },
	{ .name = "private", .file = true },
	{ .name = "shared", .file = true, .shared = true },
	{ .name = "read", .file = true, .shared = true, .load = true },
	{ .name = "wp-reuse", .prepare = CHILD_EXITS },
	{ .name = "wp-copy", .prepare = CHILD_LIVES },
	{ .name = "wp-private", .file = true, .prepare = LOADS },
	{ .name = "wp-zero", .prepare = LOADS },
};

#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

enum phase { TOUCH, UNMAP, NR_PHASES };

static const struct {
	unsigned int tasks;
	bool threads;
} setups[] = { { 1, false }, { 4, false }, { 4, true } };

static const char *kernel;
static unsigned int rounds = 15;
static int files[MAX_TASKS];
/* A byte for each task: go on, one pipe a phase, and: I am there. */
static int go[NR_PHASES][2], there[2];
static uint64_t touch_costs[MAX_ROUNDS];
/* Memory that processes share. */
static uint64_t (*unmap_costs)[NR_PIECES][MAX_ROUNDS];
static uint64_t fault_costs[TOTAL_SIZE / PAGE_SIZE];

/* What the tasks of a run share. */
static const struct test *test;
static size_t task_size;
static unsigned int round;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Static buffers, here and below: after fork(), the stack takes no fault of its own. */
static uint64_t now(void)
{
	static struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static unsigned long minor_faults(void)
{
	static struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_minflt;
}

static void get_byte(int fd)
{
	char c;

	if (read(fd, &c, 1) != 1)
		die("read");
}

static void put_byte(int fd)
{
	if (write(fd, "", 1) != 1)
		die("write");
}

static void touch(char *area, bool load)
{
	for (size_t off = 0; off < task_size; off += PAGE_SIZE) {
		if (load)
			(void)*(volatile char *)(area + off);
		else
			*(volatile char *)(area + off) = 1;
	}
}

static pid_t start_child(bool lives)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid) {
		if (!lives)
			waitpid(pid, NULL, 0);
		return pid;
	}
	if (lives)
		pause();
	_exit(0);
}

/* The area as the test wants it, and the child that has to be ended, or 0. */
static char *map_area(int fd, pid_t *child)
{
	int flags = test->shared ? MAP_SHARED : MAP_PRIVATE;
	int prot = test->load ? PROT_READ : PROT_READ | PROT_WRITE;
	char *area;

	*child = 0;
	if (!test->file)
		flags |= MAP_ANONYMOUS;
	area = mmap(NULL, task_size, prot, flags, test->file ? fd : -1, 0);
	if (area == MAP_FAILED || madvise(area, task_size, MADV_NOHUGEPAGE))
		die("mmap");
	if (test->prepare == LOADS)
		touch(area, true);
	if (test->prepare == CHILD_EXITS || test->prepare == CHILD_LIVES) {
		touch(area, false);
		*child = start_child(test->prepare == CHILD_LIVES);
		if (test->prepare == CHILD_EXITS)
			*child = 0;
	}
	return area;
}

static void end_child(pid_t child)
{
	if (child) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
}

static void unmap(char *area, unsigned int task)
{
	const size_t size = task_size / NR_PIECES;
	uint64_t start;

	/* Once for nothing, as the first one of a process faults on the buffer. */
	now();
	for (unsigned int piece = 0; piece < NR_PIECES; piece++) {
		start = now();
		munmap(area + piece * size, size);
		unmap_costs[task][piece][round] = now() - start;
	}
}

static void *run_task(void *file)
{
	pid_t child;
	char *area = map_area(*(int *)file, &child);

	put_byte(there[1]);
	get_byte(go[TOUCH][0]);
	touch(area, test->load);
	put_byte(there[1]);
	get_byte(go[UNMAP][0]);
	unmap(area, (int *)file - files);
	put_byte(there[1]);
	end_child(child);
	return NULL;
}

static void wait_for_all(unsigned int tasks)
{
	while (tasks--)
		get_byte(there[0]);
}

static void time_touch(unsigned int tasks)
{
	uint64_t start;

	wait_for_all(tasks);
	start = now();
	for (unsigned int i = 0; i < tasks; i++)
		put_byte(go[TOUCH][1]);
	wait_for_all(tasks);
	touch_costs[round] = now() - start;
}

static void let_unmap(unsigned int tasks)
{
	for (unsigned int i = 0; i < tasks; i++) {
		put_byte(go[UNMAP][1]);
		wait_for_all(1);
	}
}

static void run_processes(unsigned int tasks)
{
	for (unsigned int i = 0; i < tasks; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (!pid) {
			run_task(&files[i]);
			_exit(0);
		}
	}
	time_touch(tasks);
	let_unmap(tasks);
	while (wait(NULL) > 0)
		;
}

static void run_threads(unsigned int tasks)
{
	pthread_t threads[MAX_TASKS];

	for (unsigned int i = 0; i < tasks; i++)
		if (pthread_create(&threads[i], NULL, run_task, &files[i]))
			die("pthread_create");
	time_touch(tasks);
	let_unmap(tasks);
	for (unsigned int i = 0; i < tasks; i++)
		pthread_join(threads[i], NULL);
}

static int cmp_cost(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static void report(const char *phase, const char *kind, unsigned int tasks,
		   uint64_t insns)
{
	printf("{\"kernel\":\"%s\",\"test\":\"%s\",\"phase\":\"%s\",", kernel,
	       test->name, phase);
	printf("\"tasks\":\"%u %s\",\"insns\":%llu}\n", tasks, kind,
	       (unsigned long long)insns);
	fflush(stdout);
}

static uint64_t median(uint64_t *costs, unsigned long nr)
{
	qsort(costs, nr, sizeof(costs[0]), cmp_cost);
	return costs[nr / 2];
}

static uint64_t unmap_cost(unsigned int tasks)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < tasks; i++)
		for (unsigned int piece = 0; piece < NR_PIECES; piece++)
			sum += median(unmap_costs[i][piece], rounds);
	return sum;
}

static void measure_tasks(unsigned int tasks, bool threads)
{
	const char *kind = threads ? "threads" : tasks > 1 ? "processes" : "process";

	task_size = TOTAL_SIZE / tasks;
	for (round = 0; round < rounds; round++) {
		if (threads)
			run_threads(tasks);
		else
			run_processes(tasks);
	}
	qsort(touch_costs, rounds, sizeof(touch_costs[0]), cmp_cost);
	report("touch", kind, tasks, touch_costs[0]);
	/* A child that shares the pages, or none: when is up to the scheduler. */
	if (test->prepare == NOTHING)
		report("unmap", kind, tasks, unmap_cost(tasks));
}

static uint64_t time_fault(char *addr)
{
	uint64_t start = now();

	if (test->load)
		(void)*(volatile char *)addr;
	else
		*(volatile char *)addr = 1;
	return now() - start;
}

/* Only accesses that fault count. */
static void measure_faults(void)
{
	unsigned long nr = 0, faults;
	pid_t child;
	char *area;

	task_size = TOTAL_SIZE;
	memset(fault_costs, 0, sizeof(fault_costs));
	area = map_area(files[0], &child);
	time_fault((char *)fault_costs);
	for (size_t off = 0; off < task_size; off += PAGE_SIZE) {
		faults = minor_faults();
		fault_costs[nr] = time_fault(area + off);
		nr += minor_faults() != faults;
	}
	munmap(area, task_size);
	end_child(child);
	report("fault", "process", 1, median(fault_costs, nr));
}

static void open_files(const char *dir)
{
	static char buf[PAGE_SIZE];
	char path[256];

	for (int i = 0; i < MAX_TASKS; i++) {
		snprintf(path, sizeof(path), "%s/page_fault_bench.XXXXXX", dir);
		files[i] = mkstemp(path);
		if (files[i] < 0)
			die(dir);
		unlink(path);
		for (size_t off = 0; off < TOTAL_SIZE; off += PAGE_SIZE)
			if (write(files[i], buf, PAGE_SIZE) != PAGE_SIZE)
				die("write");
	}
}

int main(int argc, char **argv)
{
	if (argc > 3)
		rounds = atoi(argv[3]);
	if (argc < 3 || argc > 4 || rounds < 1 || rounds > MAX_ROUNDS) {
		fprintf(stderr, "usage: %s KERNEL DIRECTORY [ROUNDS]\n", argv[0]);
		return 1;
	}
	kernel = argv[1];
	open_files(argv[2]);
	unmap_costs = mmap(NULL, MAX_TASKS * sizeof(unmap_costs[0]), PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (unmap_costs == MAP_FAILED)
		die("mmap");
	if (pipe(there) || pipe(go[TOUCH]) || pipe(go[UNMAP]))
		die("pipe");
	for (test = tests; test < tests + ARRAY_SIZE(tests); test++) {
		for (size_t i = 0; i < ARRAY_SIZE(setups); i++)
			measure_tasks(setups[i].tasks, setups[i].threads);
		measure_faults();
	}
	return 0;
}
