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

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../../../mm/gup_test.h"
#include "kselftest_harness.h"
#include "hugepage_settings.h"
#include "vm_util.h"

#define GUP_TEST_FILE	"/sys/kernel/debug/gup_test"

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
 * Have the folio at @mem mapped by PTEs: a PMD is split for a mapping that covers
 * only a part of it. The second page has to be in the same writable mapping; it
 * is protected for a moment.
 */
static inline bool map_by_ptes(char *mem)
{
	return !mprotect(mem + psize(), psize(), PROT_READ) &&
	       !mprotect(mem + psize(), psize(), PROT_READ | PROT_WRITE);
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

#endif /* __COW_UTIL_H__ */
