// SPDX-License-Identifier: GPL-2.0
/*
 * Families of processes that fork and write, while all that the kernel offers is done
 * to their memory in large folios. Each process knows what it has to see, and looks.
 *
 * A family does what its seed says: each process of it has a sequence of steps of its
 * own. Families start one after the other, several at a time, with seed, seed + 1, ...
 * What goes wrong is told with the seed, the process (1 is the first one of the family,
 * 1.2.1 the first child of its second child), the step, and how to run that family again;
 * how the steps of several processes interleave is the scheduler's.
 *
 * Meanwhile, the sizes of folios that are enabled, the policies of write faults and
 * khugepaged change now and then. When all families are gone, no memory may be left.
 *
 * Not run by run_vmtests.sh: it takes as long as one lets it.
 */
#define _GNU_SOURCE
#include <asm-generic/mman.h> /* has MADV_COLLAPSE */
#include <getopt.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/swap.h>
#include <time.h>

#include "cow_util.h"

#define NR		1024	/* pages of a process */
#define NR_SHIFT	512	/* it moves by less than this */
#define SLOT		(NR + NR_SHIFT)
#define NR_SLOTS	3	/* two to be in, and one for parts that are away */
#define AWAY		2

#define STEPS		200	/* of the first process of a family; a child: a quarter */
#define MAX_DEPTH	3
#define MAX_CHILDREN	2
#define MAX_FAMILIES	64
#define MAX_THREADS	16
#define THREAD_FORKS	10	/* while they run */
#define MIN_MEET	64	/* pages that threads share at least */
#define MEET_TRIES	100	/* until all of them look at one page, a pause of 100 us each */
#define HANG_SECONDS	300

/* Stamps of threads tell the page, and are counted. */
#define THREAD_STAMP	BIT_ULL(63)
#define COUNT_BITS	44
#define COUNT_MASK	(BIT_ULL(COUNT_BITS) - 1)

#define COW_DIR		"/sys/kernel/debug/cow/"
#define SPLIT_FILE	"/sys/kernel/debug/split_huge_pages"

struct op {
	const char *name;
	bool (*run)(size_t from, size_t to);	/* false: the kernel refused */
	unsigned int weight;
};

/* Of this process; a child gets a copy. */
static struct {
	__u64 rng;
	unsigned int depth;
	unsigned int step;
	const struct op *op;
	char path[32];
	pid_t children[MAX_CHILDREN];
	unsigned int nr_children;
	unsigned int nr_forks;
	char *slots;
	char *mem;
	/* What the pages hold, and whether MADV_FREE lets the kernel take it. */
	__u64 value[NR];
	bool lazy[NR];
} me;

/* Of all of them. */
#define MAX_OPS		32
static struct {
	__u64 done[MAX_OPS];
	__u64 refused[MAX_OPS];
	__u64 processes;
	bool stop;	/* somebody has failed, or the time is over */
} *shared;

static struct {
	__u64 seed;
	unsigned int families;
	unsigned int threads;
	unsigned int seconds;
	bool replay;
} opts = { .families = 4, .threads = 3, .seconds = 60 };

static char swap_path[64];

static __u64 scramble(__u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static size_t below(__u64 *rng, size_t nr)
{
	*rng = scramble(*rng);
	return *rng % nr;
}

static size_t pick(size_t nr)
{
	return below(&me.rng, nr);
}

/* What has gone wrong */

static __noreturn void fail(const char *format, ...)
{
	char what[160];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	dprintf(STDOUT_FILENO,
		"# seed %llu, process 1%s, step %u (%s): %s\n# to repeat it: cow_stress --replay %llu -t %u\n",
		(unsigned long long)opts.seed, me.path, me.step,
		me.op ? me.op->name : "end", what, (unsigned long long)opts.seed, opts.threads);
	shared->stop = true;
	_exit(1);
}

/* Pages */

static char *addr_of(size_t page)
{
	return me.mem + page * psize();
}

/* Three words of a page hold its value, all others are 0. */
static __u64 *word(char *addr, unsigned int i)
{
	const size_t words = psize() / sizeof(__u64);
	const size_t at[] = { 0, words / 2 + 1, words - 1 };

	return (__u64 *)addr + at[i];
}

static void store(char *addr, __u64 value)
{
	for (int i = 0; i < 3; i++)
		__atomic_store_n(word(addr, i), value, __ATOMIC_RELAXED);
}

static __u64 load(char *addr, unsigned int i)
{
	return __atomic_load_n(word(addr, i), __ATOMIC_RELAXED);
}

static void write_page(char *addr, size_t page, __u64 value)
{
	store(addr, value);
	me.value[page] = value;
	me.lazy[page] = false;
}

/* The kernel may take a page after MADV_FREE, at any time until it is written to. */
static bool was_taken(char *addr, size_t page)
{
	if (!me.lazy[page] || load(addr, 0))
		return false;
	me.value[page] = 0;
	me.lazy[page] = false;
	return true;
}

static void check_page(char *addr, size_t page)
{
	const size_t words = psize() / sizeof(__u64);

	for (int i = 0; i < 3; i++) {
		__u64 found = load(addr, i);

		if (found == me.value[page] || (was_taken(addr, page) && !found))
			continue;
		fail("page %zu holds %llx at word %d, not %llx", page,
		     (unsigned long long)found, i, (unsigned long long)me.value[page]);
	}
	if (((__u64 *)addr)[1 + (me.step + page) % (words / 2)])
		fail("page %zu holds something between its words", page);
}

static void check_pages(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		check_page(addr_of(i), i);
}

/* Steps: stores and loads */

static bool op_ascend(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		write_page(addr_of(i), i, pick(-1UL) >> 1);
	return true;
}

static bool op_descend(size_t from, size_t to)
{
	for (size_t i = to; i-- > from;)
		write_page(addr_of(i), i, pick(-1UL) >> 1);
	return true;
}

static bool op_scatter(size_t from, size_t to)
{
	for (int i = 0; i < 8; i++) {
		size_t page = pick(NR);

		write_page(addr_of(page), page, pick(-1UL) >> 1);
	}
	return true;
}

static bool op_check(size_t from, size_t to)
{
	check_pages(from, to);
	return true;
}

/*
 * A family has KSM or MADV_FREE: after MADV_FREE of a merged page, Linux 7.3 drops what
 * others store and KSM merges with that page later.
 */
static bool merges(void)
{
	return opts.seed & 1;
}

/* Pages that KSM can merge. */
static bool op_same(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		write_page(addr_of(i), i, 1 + i % 2);
	return merges() && !madvise(addr_of(from), (to - from) * psize(), MADV_MERGEABLE);
}

/* Steps: what takes pages away */

/* What was written to these pages is gone. */
static void expect_zero(size_t from, size_t to)
{
	for (size_t i = from; i < to; i++) {
		me.value[i] = 0;
		me.lazy[i] = false;
	}
}

static bool op_dontneed(size_t from, size_t to)
{
	/* Of locked pages some would be taken, and the rest refused. */
	munlock(addr_of(from), (to - from) * psize());
	if (madvise(addr_of(from), (to - from) * psize(), MADV_DONTNEED))
		fail("MADV_DONTNEED: %s", strerror(errno));
	expect_zero(from, to);
	return true;
}

/* New memory, for which soft-dirty is not tracked. */
static bool op_map(size_t from, size_t to)
{
	if (mmap(addr_of(from), (to - from) * psize(), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != addr_of(from))
		fail("mmap: %s", strerror(errno));
	expect_zero(from, to);
	return true;
}

static bool op_free(size_t from, size_t to)
{
	if (merges())
		return false;
	munlock(addr_of(from), (to - from) * psize());
	if (madvise(addr_of(from), (to - from) * psize(), MADV_FREE))
		fail("MADV_FREE: %s", strerror(errno));
	for (size_t i = from; i < to; i++)
		me.lazy[i] = true;
	return true;
}

/* Steps that leave all pages as they are; threads may store meanwhile. */

static bool op_advise(size_t from, size_t to)
{
	static const int advices[] = {
		MADV_PAGEOUT, MADV_PAGEOUT, MADV_COLD, MADV_COLLAPSE, MADV_COLLAPSE,
		MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_UNMERGEABLE,
		MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_WILLNEED,
	};
	const int advice = advices[pick(ARRAY_SIZE(advices))];

	if (advice == MADV_MERGEABLE && !merges())
		return false;
	return !madvise(addr_of(from), (to - from) * psize(), advice);
}

static bool op_lock(size_t from, size_t to)
{
	return !mlock2(addr_of(from), (to - from) * psize(), pick(2) ? MLOCK_ONFAULT : 0);
}

static bool op_unlock(size_t from, size_t to)
{
	return !munlock(addr_of(from), (to - from) * psize());
}

static bool op_soft_dirty(size_t from, size_t to)
{
	return try_set("/proc/self/clear_refs", "4");
}

static bool op_split(size_t from, size_t to)
{
	char command[96];

	/* To single pages: the file warns about others if somebody else was faster. */
	snprintf(command, sizeof(command), "%d,0x%lx,0x%lx,0", getpid(),
		 (long)addr_of(from), (long)addr_of(to));
	return try_set(SPLIT_FILE, command);
}

static bool op_migrate(size_t from, size_t to)
{
	unsigned long node = pick(2), old = 1UL << node, new = 2UL >> node;

	return syscall(SYS_migrate_pages, 0, 8 * sizeof(old), &old, &new) >= 0;
}

static bool op_reclaim(size_t from, size_t to)
{
	return try_set(CGROUP "/memory.reclaim", "512K");
}

static bool op_swapoff(size_t from, size_t to)
{
	if (!swap_path[0] || swapoff(swap_path))
		return false;
	if (swapon(swap_path, 0) && errno != EBUSY)
		fail("swapon %s: %s", swap_path, strerror(errno));
	return true;
}

/* Steps: protection and moves */

static bool op_protect(size_t from, size_t to)
{
	if (mprotect(addr_of(from), (to - from) * psize(), PROT_READ))
		return false;
	check_pages(from, to);
	if (mprotect(addr_of(from), (to - from) * psize(), PROT_READ | PROT_WRITE))
		fail("mprotect: %s", strerror(errno));
	return true;
}

static bool op_uffd_wp(size_t from, size_t to)
{
	const size_t size = (to - from) * psize();
	int uffd = uffd_open(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED |
			     UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	bool done;

	if (uffd < 0)
		return false;
	done = !uffd_register(uffd, addr_of(from), size, false, true, false) &&
	       !uffd_protect(uffd, addr_of(from), size, true);
	for (size_t i = from; i < to; i += 1 + pick(4))
		write_page(addr_of(i), i, pick(-1UL) >> 1);
	check_pages(from, to);
	close(uffd);
	return done;
}

static bool move_to(char *from, char *to, size_t size)
{
	return mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
}

/*
 * A range of several VMAs may have been moved in part when the rest is refused: then
 * go on page by page. Nobody else may map something where the pages were.
 */
static void move_pages_to(char *from, char *to, size_t nr)
{
	if (!move_to(from, to, nr * psize()))
		for (size_t i = 0; i < nr; i++)
			if (!move_to(from + i * psize(), to + i * psize(), psize()) &&
			    errno != EFAULT)
				fail("mremap: %s", strerror(errno));
	if (mmap(from, nr * psize(), PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != from)
		fail("mmap: %s", strerror(errno));
}

/* Part of it is somewhere else for a while, at another alignment. */
static bool op_away(size_t from, size_t to)
{
	char *away = me.slots + (AWAY * SLOT + pick(NR_SHIFT)) * psize();

	move_pages_to(addr_of(from), away, to - from);
	for (size_t i = from; i < to; i++) {
		char *addr = away + (i - from) * psize();

		if (pick(2))
			write_page(addr, i, pick(-1UL) >> 1);
		else
			check_page(addr, i);
	}
	move_pages_to(away, addr_of(from), to - from);
	return true;
}

/* All of it moves into the other slot, by any number of pages. */
static bool op_shift(size_t from, size_t to)
{
	const bool second = me.mem >= me.slots + SLOT * psize();
	char *mem = me.slots + ((second ? 0 : SLOT) + pick(NR_SHIFT)) * psize();

	move_pages_to(me.mem, mem, NR);
	me.mem = mem;
	return true;
}

/* Steps: processes */

static void run_steps(unsigned int nr);

static void reap(void)
{
	pid_t pid = me.children[0];
	int status;

	if (waitpid(pid, &status, 0) != pid)
		fail("waitpid: %s", strerror(errno));
	memmove(me.children, me.children + 1, sizeof(me.children) - sizeof(pid));
	me.nr_children--;
	if (WIFSIGNALED(status))
		fail("child died of signal %d", WTERMSIG(status));
	/* It has told why. */
	if (WEXITSTATUS(status))
		_exit(1);
}

static pid_t fork_child(void)
{
	pid_t pid = fork();
	size_t len = strlen(me.path);

	if (pid < 0)
		fail("fork: %s", strerror(errno));
	me.nr_forks++;
	if (pid)
		return pid;
	/* Nobody is to go on alone. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	__atomic_fetch_add(&shared->processes, 1, __ATOMIC_RELAXED);
	snprintf(me.path + len, sizeof(me.path) - len, ".%u", me.nr_forks);
	me.rng = scramble(me.rng + me.nr_forks);
	me.depth++;
	me.nr_children = 0;
	me.nr_forks = 0;
	me.step = 0;
	return 0;
}

static bool op_fork(size_t from, size_t to)
{
	pid_t pid;

	if (me.depth == MAX_DEPTH)
		return false;
	if (me.nr_children == MAX_CHILDREN)
		reap();
	pid = fork_child();
	if (!pid) {
		run_steps(STEPS >> (2 * me.depth));
		_exit(0);
	}
	me.children[me.nr_children++] = pid;
	return true;
}

static bool op_reap(size_t from, size_t to)
{
	if (!me.nr_children)
		return false;
	reap();
	return true;
}

/* A child that is gone at once, or calls exec. */
static bool op_fork_exit(size_t from, size_t to)
{
	const bool exec = pick(2);
	pid_t pid = fork_child();
	int status;

	if (!pid) {
		op_scatter(from, to);
		if (exec)
			execl("/bin/true", "true", NULL);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		fail("child ended with status %x", status);
	return true;
}

/*
 * Steps: threads
 *
 * Each page belongs to one of them, or to the first thread of the process, which also
 * does what leaves pages as they are, and forks. The owner stores stamps that grow;
 * anybody else has to see the last one that was published, or a later one.
 */

static struct {
	__u64 count;
	__u64 published[NR];
	__u64 rng[MAX_THREADS];
	/* They stay in these pages, so that they meet. */
	size_t from;
	size_t nr;
	/* A page that all look at, or NR, and how many do. */
	size_t meet;
	unsigned int here;
	bool stop;
} threads;

/* Any page there that belongs to thread @id; it may be NR. */
static size_t own_page(__u64 *rng, size_t id)
{
	size_t page = threads.from + below(rng, threads.nr);

	page += id - page % (opts.threads + 1);
	return page < NR ? page : NR;
}

static void thread_store(size_t page)
{
	__u64 stamp = __atomic_add_fetch(&threads.count, 1, __ATOMIC_RELAXED);

	stamp |= THREAD_STAMP | (__u64)page << COUNT_BITS;
	store(addr_of(page), stamp);
	__atomic_store_n(&threads.published[page], stamp, __ATOMIC_RELEASE);
}

static void thread_check(size_t page)
{
	__u64 seen = __atomic_load_n(&threads.published[page], __ATOMIC_ACQUIRE);

	for (int i = 0; i < 3; i++) {
		__u64 found = load(addr_of(page), i);

		/* Nothing was stored by threads yet; then it is as before. */
		if (!seen && (found == me.value[page] || (me.lazy[page] && !found)))
			continue;
		if (found < seen || !(found & THREAD_STAMP) ||
		    ((found & ~THREAD_STAMP) >> COUNT_BITS) != page)
			fail("a thread sees %llx in page %zu, %llx or more was stored",
			     (unsigned long long)found, page, (unsigned long long)seen);
	}
}

/*
 * Look at one page without a pause.  The CPU remembers where it is, and what is stored
 * meanwhile must be seen: a thread on another CPU may make a copy of it.
 */
static void thread_meet(size_t page)
{
	thread_check(page);
	__atomic_add_fetch(&threads.here, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&threads.meet, __ATOMIC_RELAXED) == page)
		thread_check(page);
}

static void meet_threads(void)
{
	const size_t page = own_page(&me.rng, opts.threads);

	if (page == NR)
		return;
	__atomic_store_n(&threads.here, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&threads.meet, page, __ATOMIC_RELAXED);
	for (int i = 0; i < MEET_TRIES; i++) {
		if (__atomic_load_n(&threads.here, __ATOMIC_RELAXED) == opts.threads)
			break;
		usleep(100);
	}
	thread_store(page);
	/* Let them look. */
	for (int i = 0; i < MEET_TRIES; i++)
		thread_check(page);
	__atomic_store_n(&threads.meet, NR, __ATOMIC_RELAXED);
}

static void *thread_main(void *arg)
{
	const size_t id = (size_t)arg;
	__u64 *rng = &threads.rng[id];

	while (!__atomic_load_n(&threads.stop, __ATOMIC_RELAXED)) {
		size_t page = own_page(rng, id);
		size_t run = 1 + below(rng, 8);

		for (; run-- && page < NR; page += opts.threads + 1)
			thread_store(page);
		for (int i = 0; i < 8; i++)
			thread_check(threads.from + below(rng, threads.nr));
		page = __atomic_load_n(&threads.meet, __ATOMIC_RELAXED);
		if (page < NR)
			thread_meet(page);
		/* The others need the CPU as well. */
		usleep(100);
	}
	return NULL;
}

/*
 * A child that threads do not stop for: what is stored after fork() is nothing to it.
 * It is told the last stamp that may have been before.
 */
static pid_t fork_snapshot(int *go)
{
	__u64 last, again;
	int fds[2];
	pid_t pid;

	if (pipe(fds))
		fail("pipe: %s", strerror(errno));
	pid = fork_child();
	if (pid) {
		last = __atomic_load_n(&threads.count, __ATOMIC_RELAXED);
		close(fds[0]);
		if (write(fds[1], &last, sizeof(last)) != sizeof(last))
			fail("a child is gone");
		*go = fds[1];
		return pid;
	}
	close(fds[1]);
	if (read(fds[0], &last, sizeof(last)) != sizeof(last))
		_exit(1);
	/* The second time, it says that enough was stored. */
	if (read(fds[0], &again, sizeof(last)) != sizeof(last))
		_exit(1);
	for (size_t i = 0; i < NR; i++)
		for (int j = 0; j < 3; j++) {
			__u64 found = load(addr_of(i), j);

			if (found & THREAD_STAMP && (found & COUNT_MASK) > last)
				fail("page %zu has what was stored after fork()", i);
		}
	_exit(0);
}

static void end_snapshot(pid_t pid, int go)
{
	__u64 last = 0;
	int status;

	if (write(go, &last, sizeof(last)) != sizeof(last))
		fail("a child is gone");
	close(go);
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		fail("a child of threads ended with status %x", status);
	if (status)
		_exit(1);
}

static void beside_threads(size_t from, size_t to)
{
	static bool (* const steps[])(size_t from, size_t to) = {
		op_advise, op_advise, op_soft_dirty, op_split, op_migrate, op_reclaim,
		op_lock, op_unlock,
	};
	size_t page = own_page(&me.rng, opts.threads);

	steps[pick(ARRAY_SIZE(steps))](from, to);
	if (page < NR)
		thread_store(page);
	thread_check(threads.from + pick(threads.nr));
	usleep(1000 * pick(10));
}

static void choose_meeting(size_t from, size_t to)
{
	threads.nr = to - from < MIN_MEET ? MIN_MEET : to - from;
	threads.from = from < NR - threads.nr ? from : NR - threads.nr;
}

static void start_threads(pthread_t *ids)
{
	memset(threads.published, 0, sizeof(threads.published));
	threads.meet = NR;
	threads.stop = false;
	for (size_t i = 0; i < opts.threads; i++) {
		threads.rng[i] = pick(-1UL);
		if (pthread_create(&ids[i], NULL, thread_main, (void *)i))
			fail("cannot make threads");
	}
}

static void stop_threads(pthread_t *ids)
{
	__atomic_store_n(&threads.stop, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < opts.threads; i++)
		pthread_join(ids[i], NULL);
	for (size_t i = 0; i < NR; i++) {
		if (!threads.published[i])
			continue;
		me.value[i] = threads.published[i];
		me.lazy[i] = false;
	}
}

static bool op_threads(size_t from, size_t to)
{
	pthread_t ids[MAX_THREADS];
	pid_t pid;
	int go;

	choose_meeting(from, to);
	/* What was written and forked often is in small folios. */
	if (pick(4)) {
		op_map(threads.from, threads.from + threads.nr);
		op_ascend(threads.from, threads.from + threads.nr);
	}
	start_threads(ids);
	for (int i = 0; i < THREAD_FORKS; i++) {
		pid = fork_snapshot(&go);
		meet_threads();
		beside_threads(from, to);
		end_snapshot(pid, go);
	}
	stop_threads(ids);
	check_pages(0, NR);
	return true;
}

static const struct op ops[] = {
	{ "ascend", op_ascend, 12 },
	{ "descend", op_descend, 6 },
	{ "scatter", op_scatter, 12 },
	{ "check", op_check, 8 },
	{ "same", op_same, 3 },
	{ "dontneed", op_dontneed, 5 },
	{ "map", op_map, 4 },
	{ "free", op_free, 3 },
	{ "advise", op_advise, 12 },
	{ "lock", op_lock, 2 },
	{ "unlock", op_unlock, 3 },
	{ "soft_dirty", op_soft_dirty, 1 },
	{ "split", op_split, 3 },
	{ "migrate", op_migrate, 3 },
	{ "reclaim", op_reclaim, 3 },
	{ "swapoff", op_swapoff, 1 },
	{ "protect", op_protect, 4 },
	{ "uffd_wp", op_uffd_wp, 3 },
	{ "away", op_away, 4 },
	{ "shift", op_shift, 2 },
	{ "fork", op_fork, 14 },
	{ "reap", op_reap, 8 },
	{ "fork_exit", op_fork_exit, 6 },
	{ "threads", op_threads, 2 },
};

static const struct op *pick_op(void)
{
	static unsigned int sum;
	const struct op *op = ops;
	size_t at;

	if (!sum)
		for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
			sum += ops[i].weight;
	for (at = pick(sum); at >= op->weight; op++)
		at -= op->weight;
	return op;
}

/* Aligned blocks of folios, and any ranges. */
static void pick_range(size_t *from, size_t *to)
{
	size_t nr = 1UL << pick(11);

	if (pick(2)) {
		*from = pick(NR / nr) * nr;
	} else {
		nr = 1 + pick(nr);
		*from = pick(NR - nr + 1);
	}
	*to = *from + nr;
}

static void run_steps(unsigned int nr)
{
	size_t from, to;

	for (me.step = 0; me.step < nr && !shared->stop; me.step++) {
		me.op = pick_op();
		pick_range(&from, &to);
		if (opts.replay)
			dprintf(STDOUT_FILENO, "# 1%s step %u: %s [%zu, %zu)\n", me.path,
				me.step, me.op->name, from, to);
		if (me.op->run(from, to))
			__atomic_fetch_add(&shared->done[me.op - ops], 1, __ATOMIC_RELAXED);
		else
			__atomic_fetch_add(&shared->refused[me.op - ops], 1, __ATOMIC_RELAXED);
	}
	me.op = NULL;
	check_pages(0, NR);
	while (me.nr_children)
		reap();
	check_pages(0, NR);
}

/* Families */

static void start_family(__u64 seed)
{
	pid_t pid = fork();

	if (pid < 0)
		ksft_exit_fail_perror("fork");
	if (pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	opts.seed = seed;
	me.rng = scramble(seed);
	if (!try_set(CGROUP "/cgroup.procs", "0"))
		fail("cannot join " CGROUP);
	me.slots = mmap(NULL, NR_SLOTS * SLOT * psize(), PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	me.mem = me.slots + pick(NR_SHIFT) * psize();
	if (me.slots == MAP_FAILED ||
	    mmap(me.mem, NR * psize(), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != me.mem)
		fail("mmap: %s", strerror(errno));
	__atomic_fetch_add(&shared->processes, 1, __ATOMIC_RELAXED);
	run_steps(STEPS);
	_exit(0);
}

static bool family_is_good(int status)
{
	if (WIFSIGNALED(status))
		ksft_print_msg("the first process of a family died of signal %d\n",
			       WTERMSIG(status));
	return !status;
}

/* What holds for the whole system; it changes while families run. */
static void change_settings(__u64 *rng)
{
	static const char * const copy[] = { "never", "adaptive", "always", "always" };
	static const char * const reuse[] = { "page", "block", "run", "run" };
	static const char * const keep[] = { "0", "25", "50", "100" };
	static const char * const max[] = { "16384", "65536", "262144", "1048576" };

	enable_orders(*rng >> 20, "always");
	try_set(COW_DIR "copy", copy[below(rng, 4)]);
	try_set(COW_DIR "reuse", reuse[below(rng, 4)]);
	try_set(COW_DIR "keep_min_percent", keep[below(rng, 4)]);
	try_set(COW_DIR "copy_max_bytes", max[below(rng, 4)]);
	thp_write_num("khugepaged/scan_sleep_millisecs", below(rng, 2) ? 10 : 10000);
	try_set("/sys/kernel/mm/ksm/run", below(rng, 3) ? "1" : "0");
}

/* The first one is alone for its time: its threads have the CPUs. */
static bool may_start(__u64 seed, unsigned int running)
{
	return running < (seed == opts.seed + 1 ? 1 : opts.families);
}

/* Run families until the time is over, or one fails. False: one has failed. */
static bool run_families(void)
{
	__u64 rng = scramble(~opts.seed), seed = opts.seed;
	time_t end = time(NULL) + opts.seconds, hang = end + HANG_SECONDS, change = 0;
	unsigned int running = 0;
	bool good = true, more = true;
	int status;

	while (running || more) {
		for (; may_start(seed, running) && more; running++) {
			start_family(seed++);
			more = !opts.replay;
		}
		if (waitpid(-1, &status, WNOHANG) > 0) {
			running--;
			good = family_is_good(status) && good;
		} else {
			usleep(20 * 1000);
		}
		if (time(NULL) > change) {
			change = time(NULL);
			change_settings(&rng);
		}
		more = more && good && time(NULL) < end;
		/* What is run again is run to its end. */
		if (time(NULL) >= end && !opts.replay)
			shared->stop = true;
		if (time(NULL) > hang) {
			ksft_print_msg("%u families do not end\n", running);
			return false;
		}
	}
	ksft_print_msg("%llu families, %llu processes\n",
		       (unsigned long long)(seed - opts.seed),
		       (unsigned long long)shared->processes);
	return good;
}

/* Memory */

/* A field of memory.stat, with the line feed before it; all of them are in bytes. */
static long cgroup_stat(const char *field)
{
	static char buf[16384] = "\n";
	char *line;

	if (!read_file(CGROUP "/memory.stat", buf + 1, sizeof(buf) - 1))
		return 0;
	line = strstr(buf, field);
	return line ? strtol(line + strlen(field), NULL, 10) : 0;
}

static long swap_used(void)
{
	char buf[32];

	return read_file(CGROUP "/memory.swap.current", buf, sizeof(buf)) ?
	       strtol(buf, NULL, 10) : 0;
}

/* Of the cgroup that families are in: mapped or not, and swapped out. */
static long anon_bytes(void)
{
	return cgroup_stat("\nanon ") + cgroup_stat("\ninactive_anon ") +
	       cgroup_stat("\nactive_anon ") + cgroup_stat("\nunevictable ") + swap_used();
}

static long sum_of_sizes(const char *name)
{
	unsigned long orders = thp_supported_orders();
	long sum = 0;

	for (int order = 2; order < NR_ORDERS; order++)
		if (orders & (1UL << order))
			sum += counter(order, name);
	return sum;
}

/* Folios that wait for a CPU to put them on a list go with compaction. */
static bool memory_came_back(long bytes, long folios)
{
	for (int i = 0; i < 100; i++) {
		defragment();
		if (anon_bytes() <= bytes && sum_of_sizes("nr_anon") <= folios)
			return true;
		usleep(100 * 1000);
	}
	ksft_print_msg("anonymous memory: %ld bytes, expected at most %ld\n",
		       anon_bytes(), bytes);
	ksft_print_msg("large folios: %ld, expected at most %ld\n",
		       sum_of_sizes("nr_anon"), folios);
	return false;
}

static void print_counters(void)
{
	static const char * const names[] = {
		"anon_cow_alloc", "anon_cow_fallback", "anon_cow_fallback_charge", "split",
	};

	for (size_t i = 0; i < ARRAY_SIZE(ops); i++)
		ksft_print_msg("%s: %llu done, %llu refused\n", ops[i].name,
			       (unsigned long long)shared->done[i],
			       (unsigned long long)shared->refused[i]);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		ksft_print_msg("%s, all sizes: %ld\n", names[i], sum_of_sizes(names[i]));
}

/* Setup */

static struct setting settings[] = {
	{ COW_DIR "copy" },
	{ COW_DIR "reuse" },
	{ COW_DIR "keep_min_percent" },
	{ COW_DIR "copy_max_bytes" },
	{ "/sys/kernel/mm/ksm/run" },
	{ "/sys/kernel/mm/ksm/sleep_millisecs" },
	{ "/sys/kernel/mm/ksm/pages_to_scan" },
};

static void find_swap(void)
{
	FILE *fp = fopen("/proc/swaps", "r");

	if (!fp)
		return;
	if (fscanf(fp, "%*[^\n] %63s", swap_path) != 1)
		swap_path[0] = '\0';
	fclose(fp);
}

static void setup(void)
{
	const char *reason;

	if (geteuid())
		ksft_exit_skip("needs to be root\n");
	if (!thp_available())
		ksft_exit_skip("no transparent huge pages\n");
	thp_save_settings();
	save_files(settings, ARRAY_SIZE(settings));
	reason = enter_cgroup();
	if (reason)
		ksft_exit_skip("%s\n", reason);
	try_set(CGROUP_ROOT "/cgroup.procs", "0");
	find_swap();
	try_set("/sys/kernel/mm/ksm/sleep_millisecs", "10");
	try_set("/sys/kernel/mm/ksm/pages_to_scan", "500");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
}

static void bad_options(void)
{
	ksft_print_msg("options: [-s SEED] [-f FAMILIES] [-t THREADS] [-d SECONDS]\n");
	ksft_exit_fail_msg("or: --replay SEED [-t THREADS]\n");
}

static void parse_options(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "replay", required_argument, NULL, 'r' },
		{}
	};
	int c;

	opts.seed = time(NULL);
	while ((c = getopt_long(argc, argv, "s:f:t:d:r:", longs, NULL)) != -1) {
		char *end = "";
		unsigned long value = optarg ? strtoul(optarg, &end, 0) : 0;

		if (c == '?' || *end || !*optarg)
			bad_options();
		switch (c) {
		case 'r':
			opts.replay = true;
			opts.seed = value;
			break;
		case 's':
			opts.seed = value;
			break;
		case 'f':
			opts.families = value;
			break;
		case 't':
			opts.threads = value;
			break;
		case 'd':
			opts.seconds = value;
			break;
		}
	}
	if (optind < argc || !opts.families || opts.families > MAX_FAMILIES ||
	    !opts.threads || opts.threads > MAX_THREADS || !opts.seconds)
		bad_options();
}

int main(int argc, char **argv)
{
	long bytes, folios;

	/* cow_util.h has the harness for tests without options; this is none. */
	(void)test_harness_run;
	ksft_print_header();
	parse_options(argc, argv);
	setup();
	ksft_set_plan(2);
	ksft_print_msg("seed %llu\n", (unsigned long long)opts.seed);
	/* The counters lag behind by some pages, and others may get some folios. */
	bytes = anon_bytes() + 64 * psize();
	folios = sum_of_sizes("nr_anon") + 16;
	ksft_test_result(run_families(), "content\n");
	ksft_test_result(memory_came_back(bytes, folios), "memory\n");
	print_counters();
	leave_cgroup();
	restore_files(settings, ARRAY_SIZE(settings));
	ksft_finished();
}
