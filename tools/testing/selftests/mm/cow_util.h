/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of write faults after fork() on large folios share.
 *
 * A page is told by the address that the mapping starts at, and its number in
 * the mapping. Define _GNU_SOURCE before anything is included, and do not include
 * vm_util.h again, which can be included only once.
 */
#ifndef __COW_UTIL_H__
#define __COW_UTIL_H__

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../../../mm/gup_test.h"
#include "kselftest_harness.h"
#include "hugepage_settings.h"
#include "vm_util.h"

#define THP_DIR		"/sys/kernel/mm/transparent_hugepage/"
#define GUP_TEST_FILE	"/sys/kernel/debug/gup_test"
#define FAIL_DIR	"/sys/kernel/debug/fail_page_alloc/"
#define FAIL_TASK_FILE	"/proc/self/make-it-fail"
#define FAIL_NTH_FILE	"/proc/thread-self/fail-nth"
#define FAIL_SLAB_DIR	"/sys/kernel/debug/failslab/"
#define TRACE_INSTANCE	"/sys/kernel/tracing/instances/selftests_cow/"
#define TRACE_EVENT	TRACE_INSTANCE "events/cow/cow_fault/"

/* Seconds; emulated machines are slow. */
#define TIMEOUT		120
#define RACE_SECONDS	2

/* What the words of pages 0, 1, ... hold, from whom. */
#define OLD		0x01d00000UL
#define NEW		0x0e300000UL
#define CHILD		0xc41d0000UL
#define GRANDCHILD	0x64c40000UL
#define OTHER		0x07e40000UL

/* Files with one setting of the whole system */

static inline void write_setting(const char *path, const char *value)
{
	write_file(path, value, strlen(value) + 1);
}

/* What is active, where the file shows all choices; empty if there is no file. */
static inline void read_setting(const char *path, char *value, size_t size)
{
	char buf[64];
	char *start;

	value[0] = '\0';
	if (!read_file(path, buf, sizeof(buf)))
		return;
	start = strchr(buf, '[');
	start = start ? start + 1 : buf;
	snprintf(value, size, "%.*s", (int)strcspn(start, "]\n"), start);
}

/* A file whose content is restored in the end. */
struct setting {
	const char *path;
	char saved[64];
};

/* What fail_allocations() and may_fail_each() change. */
static struct setting fail_settings[] = {
	{ FAIL_DIR "probability" },
	{ FAIL_DIR "interval" },
	{ FAIL_DIR "times" },
	{ FAIL_DIR "space" },
	{ FAIL_DIR "verbose" },
	{ FAIL_DIR "task-filter" },
	{ FAIL_DIR "ignore-gfp-highmem" },
	{ FAIL_DIR "ignore-gfp-wait" },
	{ FAIL_DIR "min-order" },
	{ FAIL_SLAB_DIR "verbose" },
	{ FAIL_SLAB_DIR "ignore-gfp-wait" },
};

static inline void save_files(struct setting *settings, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (!access(settings[i].path, W_OK))
			read_setting(settings[i].path, settings[i].saved,
				     sizeof(settings[i].saved));
}

static inline void restore_files(const struct setting *settings, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (settings[i].saved[0])
			write_setting(settings[i].path, settings[i].saved);
}

static inline void save_settings(struct setting *settings, size_t nr)
{
	save_files(settings, nr);
	save_files(fail_settings, ARRAY_SIZE(fail_settings));
}

static inline void restore_settings(const struct setting *settings, size_t nr)
{
	restore_files(settings, nr);
	restore_files(fail_settings, ARRAY_SIZE(fail_settings));
}

/* Write what may be refused; errno tells why. */
static inline bool try_set(const char *path, const char *value)
{
	ssize_t len = strlen(value);
	int fd = open(path, O_WRONLY);
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, value, len) == len;
	close(fd);
	return done;
}

/* Sizes of folios */

/*
 * Have anonymous folios of @orders in the mappings that @enabled says. Some size
 * stays enabled, for mappings that we have not got, and the other files are left
 * alone: else khugepaged would stop and start anew, or wake up.
 */
static inline void enable_orders(unsigned long orders, const char *enabled)
{
	unsigned long supported = thp_supported_orders();
	const char *unused = "madvise";
	char name[64];

	for (int i = NR_ORDERS - 1; i >= 0; i--) {
		if (!(supported & (1UL << i)))
			continue;
		snprintf(name, sizeof(name), "hugepages-%ukB/enabled",
			 (psize() >> 10) << i);
		thp_write_string(name, orders & (1UL << i) ? enabled : unused);
		/* That was the largest. */
		unused = "never";
	}
}

/* Faults may not wait for large folios: have some in stock. */
static inline void defragment(void)
{
	try_set("/proc/sys/vm/compact_memory", "1");
}

/* A counter of folios of one order; -1 if there is none. */
static inline long counter(int order, const char *name)
{
	char path[128];
	char buf[32];

	snprintf(path, sizeof(path), THP_DIR "hugepages-%ukB/stats/%s",
		 (psize() >> 10) << order, name);
	return read_file(path, buf, sizeof(buf)) ? strtol(buf, NULL, 10) : -1;
}

/* Content: one word a page. */

static inline void put(char *mem, size_t page, __u64 value)
{
	__u64 *word = (__u64 *)(mem + page * psize());

	*word = value;
	asm volatile("" : : "r" (word) : "memory");
}

static inline __u64 get(char *mem, size_t page)
{
	return FORCE_READ(*(__u64 *)(mem + page * psize()));
}

static inline void fill(char *mem, size_t from, size_t to, __u64 base)
{
	for (size_t i = from; i < to; i++)
		put(mem, i, base + i);
}

/*
 * Number of pages in [from, to), other than special ones, that hold something
 * else than fill() with @base leaves. @special has an entry for each page of
 * the mapping.
 */
static inline size_t count_mismatches(char *mem, const bool *special, size_t from,
				      size_t to, __u64 base)
{
	size_t bad = 0;

	for (size_t i = from; i < to; i++)
		bad += !special[i] && get(mem, i) != base + i;
	return bad;
}

/* Odd, so that it leads to each page, if @nr is a power of two. */
static inline size_t shuffled_page(size_t i, size_t nr)
{
	return (i * 167 + 11) % nr;
}

/* Faults */

static inline long minor_faults(void)
{
	static struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt;
}

/* The number of minor faults that a store to @page takes. */
static inline long store_faults(char *mem, size_t page, __u64 value)
{
	long before;

	/* The first call takes the faults on what it needs itself. */
	minor_faults();
	before = minor_faults();
	put(mem, page, value);
	return minor_faults() - before;
}

static sigjmp_buf fault_jump;

/* A handler for signals between sigsetjmp(fault_jump, 1) and what raises them. */
static inline void fault_handler(int sig)
{
	siglongjmp(fault_jump, sig);
}

/* The signal that a store to @page gets, 0 if it succeeds. Not for threads. */
static inline int try_store(char *mem, size_t page, __u64 value)
{
	struct sigaction act = { .sa_handler = fault_handler };
	struct sigaction segv, bus;
	int sig;

	sigaction(SIGSEGV, &act, &segv);
	sigaction(SIGBUS, &act, &bus);
	sig = sigsetjmp(fault_jump, 1);
	if (!sig)
		put(mem, page, value);
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
	return sig;
}

static inline void expect_segv(struct __test_metadata *_metadata, char *mem,
			       size_t from, size_t to)
{
	size_t bad = 0;

	for (size_t i = from; i < to; i++)
		bad += try_store(mem, i, OTHER) != SIGSEGV;
	EXPECT_EQ(bad, 0) TH_LOG("stores got no SIGSEGV in [%zu, %zu)", from, to);
}

/* Page tables and folios */

/* Number of the @nr pages, other than special ones, that have @flag in pagemap. */
static inline size_t count_pages_with(int pagemap_fd, char *mem, size_t nr,
				      const bool *special, __u64 flag)
{
	size_t count = 0;

	for (size_t i = 0; i < nr; i++)
		count += !special[i] &&
			 (pagemap_get_entry(pagemap_fd, mem + i * psize()) & flag);
	return count;
}

/* What /proc/kpageflags has for a page; 0 if it has nothing. */
static inline __u64 kpageflags(int kpageflags_fd, unsigned long pfn)
{
	uint64_t flags;

	return pageflags_get(pfn, kpageflags_fd, &flags) ? 0 : flags;
}

static inline bool is_tail(int kpageflags_fd, unsigned long pfn)
{
	return kpageflags(kpageflags_fd, pfn) & KPF_COMPOUND_TAIL;
}

#define BROKEN	(-3)	/* no folio mapped as a whole */

/*
 * The order of the folio at @page: all of it, and nothing else, has to be mapped
 * from there on, and to be aligned. The mapping has @nr pages.
 */
static inline int mapped_order(int pagemap_fd, int kpageflags_fd, char *mem,
			       size_t page, size_t nr)
{
	unsigned long pfn = pagemap_get_pfn(pagemap_fd, mem + page * psize());
	uintptr_t addr = (uintptr_t)mem + page * psize();
	size_t i = 1;

	if (pfn == -1UL || is_tail(kpageflags_fd, pfn))
		return BROKEN;
	for (; is_tail(kpageflags_fd, pfn + i); i++)
		if (page + i >= nr ||
		    pagemap_get_pfn(pagemap_fd, mem + (page + i) * psize()) != pfn + i)
			return BROKEN;
	if (addr & (i * psize() - 1))
		return BROKEN;
	return __builtin_ctzl(i);
}

/* A field in kB of the mapping that starts at @mem, in bytes; -1 if not found. */
static inline long smaps_bytes(char *mem, const char *field)
{
	unsigned long value = 0;
	char start[32];
	char buf[256];
	bool found;
	FILE *fp;

	fp = fopen("/proc/self/smaps", "r");
	if (!fp)
		return -1;
	snprintf(start, sizeof(start), "%08lx-", (unsigned long)mem);
	found = check_for_pattern(fp, start, buf, sizeof(buf)) &&
		check_for_pattern(fp, field, buf, sizeof(buf)) &&
		sscanf(buf + strlen(field), "%20lu", &value) == 1;
	fclose(fp);
	return found ? (long)(value << 10) : -1;
}

/* Why there can be no test with folios of @size bytes, NULL if there can be one. */
static inline const char *unsupported_size(size_t size)
{
	static char reason[64];

	if (geteuid())
		return "needs to be root";
	if (!thp_available())
		return "no transparent huge pages";
	snprintf(reason, sizeof(reason), "no folios of %zu kB", size >> 10);
	if (size < 4 * psize() ||
	    !(thp_supported_orders() & (1UL << sz2ord(size, psize()))))
		return reason;
	return NULL;
}

/* Address space that nobody else maps anything in, for MAP_FIXED. */
static inline char *reserve_area(struct __test_metadata *_metadata, size_t size)
{
	char *area = mmap(NULL, size, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	ASSERT_NE(area, MAP_FAILED);
	return area;
}

/* The first PMD boundary behind @addr. */
static inline char *next_pmd(char *addr, size_t pmd_size)
{
	return addr + pmd_size - ((uintptr_t)addr & (pmd_size - 1));
}

/*
 * Have the folio of @size bytes at @mem mapped by PTEs: a PMD is split for a
 * mapping that covers only a part of it. The folio has to be in one writable
 * mapping; it is protected for a moment.
 *
 * Protecting the whole of it afterwards leaves all PTEs alike, also where arm64
 * had unfolded one of its contpte blocks: PTEs that differ end a batch, and
 * MADV_FREE splits folios that are not one batch.
 */
static inline bool map_by_ptes(char *mem, size_t size)
{
	return !mprotect(mem + psize(), psize(), PROT_READ) &&
	       !mprotect(mem + psize(), psize(), PROT_READ | PROT_WRITE) &&
	       !mprotect(mem, size, PROT_READ) &&
	       !mprotect(mem, size, PROT_READ | PROT_WRITE);
}

static inline void move(struct __test_metadata *_metadata, char *from, size_t size,
			char *to)
{
	ASSERT_EQ(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
}

/* Children */

struct child {
	pid_t pid;
	int go;		/* the parent writes to it: finish */
	int ready;	/* the parent reads from it: the child has got so far */
};

/*
 * Fork. The child has to call child_pause() and to exit with status 0 after it;
 * the parent has to call child_started(), and child_finish() in the end.
 *
 * Return: 0 in the child.
 */
static inline pid_t child_fork(struct __test_metadata *_metadata, struct child *child)
{
	int go[2], ready[2];

	ASSERT_EQ(pipe(go), 0);
	ASSERT_EQ(pipe(ready), 0);
	child->pid = fork();
	ASSERT_GE(child->pid, 0);
	/* Each of them keeps its own ends, to see when the other one is gone. */
	if (child->pid) {
		close(go[0]);
		close(ready[1]);
		child->go = go[1];
		child->ready = ready[0];
	} else {
		close(go[1]);
		close(ready[0]);
		child->go = go[0];
		child->ready = ready[1];
	}
	return child->pid;
}

/* In the child: tell the parent to go on, and wait until it wants us to finish. */
static inline void child_pause(const struct child *child)
{
	char c = 0;

	if (write(child->ready, &c, 1) != 1)
		_exit(2);
	/* Nothing to read: the parent has failed. */
	if (read(child->go, &c, 1) != 1)
		_exit(3);
}

static inline void child_started(struct __test_metadata *_metadata,
				 const struct child *child)
{
	char c;

	ASSERT_EQ(read(child->ready, &c, 1), 1) TH_LOG("child failed to start");
}

static inline void expect_exit(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(WEXITSTATUS(status), 0) TH_LOG("the child saw something wrong");
}

static inline void child_finish(struct __test_metadata *_metadata,
				const struct child *child)
{
	char c = 0;

	ASSERT_EQ(write(child->go, &c, 1), 1);
	expect_exit(_metadata, child->pid);
	close(child->go);
	close(child->ready);
}

/* Have all folios shared with a child, write-protected by that, and unshared. */
static inline void share_once(struct __test_metadata *_metadata)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(0);
	expect_exit(_metadata, pid);
}

/* Writes by others than the CPU's stores; true if the word was written. */

static inline bool write_to_process(pid_t pid, char *addr, __u64 value)
{
	struct iovec local = { &value, sizeof(value) };
	struct iovec remote = { addr, sizeof(value) };

	return process_vm_writev(pid, &local, 1, &remote, 1, 0) == sizeof(value);
}

/* The process may not be allowed to write there itself. */
static inline bool poke_process(pid_t pid, char *addr, long value)
{
	bool done = false;

	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL))
		return false;
	if (!ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) &&
	    waitpid(pid, NULL, __WALL) == pid)
		done = !ptrace(PTRACE_POKEDATA, pid, addr, (void *)value);
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
	return done;
}

/* Pins: @fd is of GUP_TEST_FILE, and has one pin at a time. */

static inline bool pin(int fd, char *addr, size_t size, int flags)
{
	struct pin_longterm_test args = {
		.addr = (uintptr_t)addr,
		.size = size,
		.flags = flags,
	};

	return !ioctl(fd, PIN_LONGTERM_TEST_START, &args);
}

/* The first word of what is pinned, which has to be a single page. */
static inline __u64 read_pin(struct __test_metadata *_metadata, int fd)
{
	__u64 page[psize() / sizeof(__u64)];
	__u64 addr = (uintptr_t)page;

	ASSERT_EQ(ioctl(fd, PIN_LONGTERM_TEST_READ, &addr), 0);
	return page[0];
}

/* userfaultfd: what uffd_register() of vm_util.h does not do */

static inline int uffd_open(__u64 features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		return -1;
	}
	return fd;
}

static inline int uffd_protect(int uffd, char *mem, size_t size, bool protect)
{
	struct uffdio_writeprotect args = {
		.range = { .start = (uintptr_t)mem, .len = size },
		.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return ioctl(uffd, UFFDIO_WRITEPROTECT, &args);
}

static inline int uffd_rwp_register(int uffd, char *mem, size_t size)
{
	struct uffdio_register args = {
		.range = { .start = (uintptr_t)mem, .len = size },
		.mode = UFFDIO_REGISTER_MODE_RWP,
	};

	return ioctl(uffd, UFFDIO_REGISTER, &args);
}

static inline int uffd_rwprotect(int uffd, char *mem, size_t size, bool protect)
{
	struct uffdio_rwprotect args = {
		.range = { .start = (uintptr_t)mem, .len = size },
		.mode = protect ? UFFDIO_RWPROTECT_MODE_RWP : 0,
	};

	return ioctl(uffd, UFFDIO_RWPROTECT, &args);
}

/* Swap */

static inline bool has_swap(void)
{
	FILE *fp = fopen("/proc/swaps", "r");
	bool found = false;
	char line[256];

	if (!fp)
		return false;
	/* The first line has the names of the columns. */
	if (fgets(line, sizeof(line), fp))
		found = fgets(line, sizeof(line), fp);
	fclose(fp);
	return found;
}

/* Failures of allocations by this process */

/* Have allocations by this process fail from some order on. */
static inline bool fail_allocations(int order)
{
	char min_order[16];

	if (access(FAIL_DIR "min-order", W_OK) || access(FAIL_TASK_FILE, W_OK))
		return false;
	snprintf(min_order, sizeof(min_order), "%d", order);
	write_setting(FAIL_DIR "min-order", min_order);
	write_setting(FAIL_DIR "ignore-gfp-highmem", "N");
	write_setting(FAIL_DIR "task-filter", "Y");
	write_setting(FAIL_DIR "interval", "1");
	write_setting(FAIL_DIR "times", "-1");
	write_setting(FAIL_DIR "space", "0");
	write_setting(FAIL_DIR "verbose", "0");
	write_setting(FAIL_DIR "probability", "100");
	write_setting(FAIL_TASK_FILE, "1");
	return true;
}

static inline void fail_no_allocations(void)
{
	write_setting(FAIL_TASK_FILE, "0");
	write_setting(FAIL_DIR "probability", "0");
}

/* More than a single fault takes. */
#define MAX_ALLOCATIONS	64

/* Can each allocation of this thread fail, the small ones that may wait, too? */
static inline bool may_fail_each(void)
{
	if (access(FAIL_DIR "min-order", W_OK) || access(FAIL_NTH_FILE, W_OK))
		return false;
	write_setting(FAIL_DIR "min-order", "0");
	write_setting(FAIL_DIR "ignore-gfp-highmem", "N");
	write_setting(FAIL_DIR "ignore-gfp-wait", "N");
	write_setting(FAIL_DIR "verbose", "0");
	/* Not all kernels that have the one have the other. */
	try_set(FAIL_SLAB_DIR "ignore-gfp-wait", "N");
	try_set(FAIL_SLAB_DIR "verbose", "0");
	return true;
}

/*
 * Have the @nth allocation of this thread from now on fail; the first one is 1.
 *
 * Return: what has_failed() needs.
 */
static inline int fail_nth(int nth)
{
	int fd = open(FAIL_NTH_FILE, O_RDWR);
	char buf[16];
	int len;

	len = snprintf(buf, sizeof(buf), "%d", nth);
	if (fd < 0 || pwrite(fd, buf, len, 0) != len)
		ksft_exit_fail_perror(FAIL_NTH_FILE);
	return fd;
}

/* Were there so many allocations since then? No further one fails. */
static inline bool has_failed(int fd)
{
	char left = '0';

	/* Where copies to user space can fail, too, the one that is left fails here. */
	if (pread(fd, &left, 1, 0) != 1) {
		if (errno != EFAULT)
			ksft_exit_fail_perror(FAIL_NTH_FILE);
		left = '1';
	}
	if (pwrite(fd, "0", 1, 0) != 1)
		ksft_exit_fail_perror(FAIL_NTH_FILE);
	close(fd);
	return left == '0';
}

/* The tracepoint cow_fault */

/* Ends what trace_start() began, and what a test that was killed left. */
static inline void trace_stop(void)
{
	rmdir(TRACE_INSTANCE);
}

/* Trace this process, apart from other users of the tracepoint; true if there is one. */
static inline bool trace_start(void)
{
	char filter[32];

	trace_stop();
	snprintf(filter, sizeof(filter), "common_pid == %d", getpid());
	if (mkdir(TRACE_INSTANCE, 0700))
		return false;
	if (try_set(TRACE_EVENT "filter", filter) && try_set(TRACE_EVENT "enable", "1"))
		return true;
	trace_stop();
	return false;
}

/* The number of events since the start that have @fmt in them; -1 if they are unknown. */
static inline int __printf(1, 2) traced(const char *fmt, ...)
{
	FILE *trace = fopen(TRACE_INSTANCE "trace", "r");
	char line[256], want[128];
	int nr = 0;
	va_list ap;

	if (!trace)
		return -1;
	va_start(ap, fmt);
	vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	while (fgets(line, sizeof(line), trace))
		nr += !!strstr(line, want);
	fclose(trace);
	return nr;
}

static inline void run_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* A memory cgroup */

#define CGROUP_ROOT	"/tmp/cow_cgroup"
#define CGROUP		CGROUP_ROOT "/cow"

/* Become a member of a new memory cgroup. Return why that cannot be done. */
static inline const char *enter_cgroup(void)
{
	if (unshare(CLONE_NEWNS) ||
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return "cannot have mounts of our own";
	if (mkdir(CGROUP_ROOT, 0700) && errno != EEXIST)
		return "cannot make " CGROUP_ROOT;
	if (mount("none", CGROUP_ROOT, "cgroup2", 0, NULL))
		return "no cgroup2";
	if (!try_set(CGROUP_ROOT "/cgroup.subtree_control", "+memory"))
		return "no memory controller in cgroup2";
	/* It is there if a test was killed. */
	rmdir(CGROUP);
	if (mkdir(CGROUP, 0700) || !try_set(CGROUP "/cgroup.procs", "0"))
		return "cannot use cgroup2";
	return NULL;
}

static inline void leave_cgroup(void)
{
	try_set(CGROUP_ROOT "/cgroup.procs", "0");
	rmdir(CGROUP);
	umount2(CGROUP_ROOT, MNT_DETACH);
	rmdir(CGROUP_ROOT);
}

/*
 * Set a limit that leaves room for @nr pages. What a CPU has charged in advance
 * is given back when the high limit is set; nothing is charged in advance once
 * the new limit is near. The files are open before, since that is charged, too.
 */
static inline bool try_leave_room(size_t nr)
{
	int current = open(CGROUP "/memory.current", O_RDONLY);
	int high = open(CGROUP "/memory.high", O_WRONLY);
	int max = open(CGROUP "/memory.max", O_WRONLY);
	char buf[32];
	ssize_t len;

	if (current < 0 || high < 0 || max < 0)
		return false;
	try_set(CGROUP "/memory.swap.max", "0");
	for (int i = 0; i < 3; i++) {
		if (write(high, "0", 1) != 1 || write(high, "max", 3) != 3)
			return false;
		/* Other CPUs are asked to, and do it a bit later. */
		usleep(10 * 1000);
		len = pread(current, buf, sizeof(buf) - 1, 0);
		if (len <= 0)
			return false;
		buf[len] = '\0';
		len = snprintf(buf, sizeof(buf), "%lu",
			       strtoul(buf, NULL, 10) + nr * psize());
		if (write(max, buf, len) != len)
			return false;
	}
	/* They stay open: to close them would free what was charged. */
	return true;
}

/* khugepaged */

/* Have khugepaged sleep, which would put what was copied into larger folios. */
static inline void stop_khugepaged(unsigned long orders)
{
	struct thp_settings thp;
	char *mem;

	thp_read_settings(&thp);
	thp.thp_enabled = THP_NEVER;
	thp.thp_defrag = THP_DEFRAG_ALWAYS;
	thp.khugepaged.pages_to_scan = 1;
	/* Should it wake up all the same, as it does for the first process with work. */
	thp.khugepaged.max_ptes_shared = 0;
	thp.khugepaged.scan_sleep_millisecs = 3600 * 1000;
	for (int i = 0; i < NR_ORDERS; i++)
		thp.hugepages[i].enabled = THP_NEVER;
	thp_write_settings(&thp);

	/* Give it something to do now, so that it sleeps for so long after it. */
	enable_orders(orders, "always");
	mem = mmap(NULL, 2 * read_pmd_pagesize(), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	put(mem, 0, 0);
	usleep(200 * 1000);
	munmap(mem, 2 * read_pmd_pagesize());
}

#endif /* __COW_UTIL_H__ */
