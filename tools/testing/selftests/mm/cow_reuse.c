// SPDX-License-Identifier: GPL-2.0
/*
 * Write faults on PTE-mapped large folios that fork() shared and that are
 * exclusive to this process again.
 *
 * Such a fault may map more pages of the folio writable than the one that was
 * stored to. Whether a PTE is writable cannot be read; it shows in the minor
 * faults that stores take. Tests of correctness expect that exactly the right
 * pages take none, on kernels that map one page at a fault as well as on
 * kernels that map a window. Tests of the window's policy need the debugfs
 * file that selects it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "cow_util.h"

#define POLICY_FILE	"/sys/kernel/debug/cow/reuse"
#define SPLIT_FILE	"/sys/kernel/debug/split_huge_pages"

/* Page tables that one test looks at the ends of, and others before. */
#define NR_TABLES	16
#define NR_OTHER_TABLES	512

/* With base pages below 4K there would be more. */
#define MAX_PAGES	512

/* Argument of this program that makes it the process of child_execs. */
#define WAIT_ARG	"--wait"

FIXTURE(cow_reuse)
{
	char *area;		/* address space that is reserved for the test */
	size_t area_size;
	char *base;		/* first PMD boundary inside */
	char *mem;		/* where the folio is mapped, and its pages */
	size_t nr;
	size_t size;
	size_t pmd;
	size_t block;		/* bytes that one fault maps at least */
	size_t k;		/* the page to store to, and two near to it */
	size_t j;
	size_t r;
	bool special[MAX_PAGES];	/* pages with an expectation of their own */
	size_t fault_at[MAX_PAGES];
	size_t sequence[MAX_PAGES];
	int pagemap_fd;
	int kpageflags_fd;
};

FIXTURE_VARIANT(cow_reuse)
{
	size_t size;
};

FIXTURE_VARIANT_ADD(cow_reuse, 16K) { .size = 16 << 10, };
FIXTURE_VARIANT_ADD(cow_reuse, 64K) { .size = 64 << 10, };
FIXTURE_VARIANT_ADD(cow_reuse, 1M) { .size = 1 << 20, };
FIXTURE_VARIANT_ADD(cow_reuse, 2M) { .size = 2 << 20, };

/* The policy: what a fault on an exclusive folio maps writable. */

static char saved_policy[16];

static bool has_policy(void)
{
	return !access(POLICY_FILE, W_OK);
}

static void set_policy(const char *policy)
{
	if (has_policy())
		write_setting(POLICY_FILE, policy);
}

static void restore(void)
{
	if (saved_policy[0])
		set_policy(saved_policy);
	restore_settings(NULL, 0);
}

static size_t block_size(void)
{
#ifdef __aarch64__
	/* A contpte block has 16, 128 or 32 pages. */
	if (psize() > (4 << 10))
		return 2 << 20;
#endif
	return 64 << 10;
}

/*
 * First page of, and the page behind, what a single store to @page makes
 * writable in a mapping where nothing was writable.
 */
static size_t open_first(struct _test_data_cow_reuse *self, size_t page)
{
	uintptr_t addr = (uintptr_t)self->mem + page * psize();

	if (!has_policy())
		return page;
	addr &= ~(self->block - 1);
	if (addr <= (uintptr_t)self->mem)
		return 0;
	return (addr - (uintptr_t)self->mem) / psize();
}

static size_t open_end(struct _test_data_cow_reuse *self, size_t page)
{
	uintptr_t addr = (uintptr_t)self->mem + page * psize();
	size_t end;

	if (!has_policy())
		return page + 1;
	addr = (addr & ~(self->block - 1)) + self->block;
	end = (addr - (uintptr_t)self->mem) / psize();
	return end < self->nr ? end : self->nr;
}

/* Number of pages in [from, to), other than special ones, that hold something else. */
static size_t mismatches(struct _test_data_cow_reuse *self, size_t from, size_t to,
			 __u64 base)
{
	return count_mismatches(self->mem, self->special, from, to, base);
}

/*
 * Store to each page in [from, to) but special ones, and expect @want faults
 * at each. One page a fault, so that one store does not spoil the next result.
 */
static void expect_faults(struct __test_metadata *_metadata,
			  struct _test_data_cow_reuse *self,
			  size_t from, size_t to, long want)
{
	size_t bad = 0, first = 0;

	set_policy("page");
	for (size_t i = from; i < to; i++) {
		if (self->special[i])
			continue;
		if (store_faults(self->mem, i, NEW + i) != want && !bad++)
			first = i;
	}
	set_policy("run");
	EXPECT_EQ(bad, 0)
		TH_LOG("in [%zu, %zu), want %ld faults each, first wrong: %zu",
		       from, to, want, first);
}

/* Expect what a single store to @page should have left writable. */
static void expect_window(struct __test_metadata *_metadata,
			  struct _test_data_cow_reuse *self, size_t page)
{
	size_t first = open_first(self, page);
	size_t end = open_end(self, page);

	expect_faults(_metadata, self, first, end, 0);
	expect_faults(_metadata, self, 0, first, 1);
	expect_faults(_metadata, self, end, self->nr, 1);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* Page tables and folios */

static __u64 pagemap(struct _test_data_cow_reuse *self, size_t page)
{
	return pagemap_get_entry(self->pagemap_fd, self->mem + page * psize());
}

/* Number of pages, other than special ones, that have @flag. */
static size_t pages_with(struct _test_data_cow_reuse *self, __u64 flag)
{
	return count_pages_with(self->pagemap_fd, self->mem, self->nr, self->special,
				flag);
}

/* Is one folio of @nr pages, and nothing else, mapped from @mem on? */
static bool is_folio(struct _test_data_cow_reuse *self, char *mem, size_t nr)
{
	unsigned long pfn = pagemap_get_pfn(self->pagemap_fd, mem);

	if (pfn == -1UL || is_tail(self->kpageflags_fd, pfn) ||
	    is_tail(self->kpageflags_fd, pfn + nr))
		return false;
	for (size_t i = 1; i < nr; i++)
		if (pagemap_get_pfn(self->pagemap_fd, mem + i * psize()) != pfn + i ||
		    !is_tail(self->kpageflags_fd, pfn + i))
			return false;
	return true;
}

/* Enable anonymous folios of one order, or of none if it is negative. */
static void enable_order(int order)
{
	struct thp_settings settings;

	thp_read_settings(&settings);
	settings.thp_enabled = THP_NEVER;
	settings.thp_defrag = THP_DEFRAG_ALWAYS;
	for (int i = 0; i < NR_ORDERS; i++)
		settings.hugepages[i].enabled = THP_NEVER;
	if (order >= 0)
		settings.hugepages[order].enabled = THP_ALWAYS;
	thp_write_settings(&settings);
}

/* Populate @size bytes at @mem with one folio of that size. */
static void alloc_folio(struct __test_metadata *_metadata,
			struct _test_data_cow_reuse *self, char *mem, size_t size)
{
	char *map;

	enable_order(sz2ord(size, psize()));
	map = mmap(mem, size, PROT_READ | PROT_WRITE,
		   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_EQ(map, mem);
	put(mem, 0, 0);
	/* khugepaged shall not find anything to do. */
	enable_order(-1);

	ASSERT_TRUE(map_by_ptes(mem, size));
	ASSERT_EQ(smaps_bytes(mem, "AnonHugePages:"), 0);
	ASSERT_EQ(smaps_bytes(mem, "Rss:"), size);
	ASSERT_TRUE(is_folio(self, mem, size / psize()))
		TH_LOG("got no folio of %zu bytes", size);
}

/* Children */

typedef int (*child_fn)(struct _test_data_cow_reuse *self);

static int nothing(struct _test_data_cow_reuse *self)
{
	return 0;
}

static int has_old(struct _test_data_cow_reuse *self)
{
	return !!mismatches(self, 0, self->nr, OLD);
}

static void child_main(struct _test_data_cow_reuse *self, const struct child *child,
		       child_fn before, child_fn after)
{
	if (before(self))
		_exit(1);
	child_pause(child);
	_exit(after(self) ? 4 : 0);
}

/* Fork a child that runs @before now and @after when it is told to finish. */
static void child_start(struct __test_metadata *_metadata,
			struct _test_data_cow_reuse *self, struct child *child,
			child_fn before, child_fn after)
{
	if (!child_fork(_metadata, child))
		child_main(self, child, before, after);
	child_started(_metadata, child);
}

static void choose_pages(struct _test_data_cow_reuse *self, size_t size)
{
	self->size = size;
	self->nr = size / psize();
	self->block = block_size();
	self->j = self->nr / 2;
	self->k = self->j + 1;
	self->r = self->nr > 4 ? self->k + 2 : 0;
}

static void choose_addresses(struct __test_metadata *_metadata,
			     struct _test_data_cow_reuse *self)
{
	self->pmd = read_pmd_pagesize();
	ASSERT_NE(self->pmd, 0);
	self->area_size = 8 * self->pmd;
	self->area = reserve_area(_metadata, self->area_size);
	self->base = next_pmd(self->area, self->pmd);
	self->mem = self->base + self->pmd;
}

/* Without the file, does a store to a page open others as well? */
static bool opens_window(struct __test_metadata *_metadata,
			 struct _test_data_cow_reuse *self)
{
	if (has_policy())
		return false;
	alloc_folio(_metadata, self, self->mem, self->size);
	share_once(_metadata);
	put(self->mem, self->k, 0);
	return !store_faults(self->mem, self->j, 0);
}

FIXTURE_SETUP(cow_reuse)
{
	const char *reason = unsupported_size(variant->size);

	self->area = MAP_FAILED;
	if (reason)
		SKIP(return, "%s", reason);
	choose_pages(self, variant->size);
	ASSERT_LE(self->nr, MAX_PAGES);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ASSERT_GE(self->pagemap_fd, 0);
	self->kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	ASSERT_GE(self->kpageflags_fd, 0);

	choose_addresses(_metadata, self);
	set_policy("run");
	if (opens_window(_metadata, self))
		SKIP(return, "cannot test without %s", POLICY_FILE);
	alloc_folio(_metadata, self, self->mem, self->size);
	fill(self->mem, 0, self->nr, OLD);
}

FIXTURE_TEARDOWN(cow_reuse)
{
	if (self->area == MAP_FAILED)
		return;
	munmap(self->area, self->area_size);
	close(self->pagemap_fd);
	close(self->kpageflags_fd);
}

/*
 * Who is exclusive
 */

/* All that is left is ours: reuse, in place, without using any memory. */
TEST_F_TIMEOUT(cow_reuse, child_exits, TIMEOUT)
{
	unsigned long pfn = pagemap_get_pfn(self->pagemap_fd, self->mem);

	share_once(_metadata);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	EXPECT_EQ(store_faults(self->mem, self->k, NEW + self->k), 1);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(pagemap_get_pfn(self->pagemap_fd, self->mem), pfn);
	EXPECT_TRUE(is_folio(self, self->mem, self->nr));
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), self->size);
	EXPECT_EQ(pages_with(self, PM_PRESENT), self->nr);
	EXPECT_EQ(pages_with(self, PM_MMAP_EXCLUSIVE), self->nr);
}

/* So there is nothing that could fail. */
TEST_F_TIMEOUT(cow_reuse, allocates_nothing, TIMEOUT)
{
	int fd;

	if (!may_fail_each())
		SKIP(return, "no fault injection for page allocation");
	share_once(_metadata);
	fd = fail_nth(1);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_FALSE(has_failed(fd));
	expect_window(_metadata, self, self->k);
}

/* Become another program that waits as child_main() does. */
static void exec_wait(int go, int ready)
{
	if (dup2(go, STDIN_FILENO) < 0 || dup2(ready, STDOUT_FILENO) < 0)
		_exit(1);
	execl("/proc/self/exe", "cow_reuse", WAIT_ARG, NULL);
	_exit(2);
}

/* The child lives, but what it executes has another address space. */
TEST_F_TIMEOUT(cow_reuse, child_execs, TIMEOUT)
{
	struct child child;
	int go[2], ready[2];

	ASSERT_EQ(pipe2(go, O_CLOEXEC), 0);
	ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
	child.pid = fork();
	ASSERT_GE(child.pid, 0);
	if (!child.pid)
		exec_wait(go[0], ready[1]);
	child.go = go[1];
	child.ready = ready[0];
	close(ready[1]);
	child_started(_metadata, &child);

	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	child_finish(_metadata, &child);
}

/* The parent's stores, sequential ones too, stay out of a living child. */
TEST_F_TIMEOUT(cow_reuse, child_lives, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

static int store_all(struct _test_data_cow_reuse *self)
{
	fill(self->mem, 0, self->nr, CHILD);
	return !!mismatches(self, 0, self->nr, CHILD);
}

/* The child's stores stay out of the parent. */
TEST_F_TIMEOUT(cow_reuse, child_stores, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, store_all, nothing);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	put(self->mem, self->k, OLD + self->k);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	child_finish(_metadata, &child);
}

static int store_opens_window(struct _test_data_cow_reuse *self)
{
	size_t first = open_first(self, self->k);
	size_t end = open_end(self, self->k);
	long bad = 0;

	put(self->mem, self->k, CHILD + self->k);
	set_policy("page");
	for (size_t i = 0; i < self->nr; i++)
		bad += store_faults(self->mem, i, CHILD + i) !=
		       (i < first || i >= end);
	set_policy("run");
	return bad || mismatches(self, 0, self->nr, CHILD);
}

/* The child inherits the folio: it is the one that reuses. */
TEST_F_TIMEOUT(cow_reuse, parent_unmaps, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, store_opens_window);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	child_finish(_metadata, &child);
	EXPECT_EQ(get(self->mem, self->k), 0);
}

/* Only a half was ever shared: the other one has stayed writable. */
TEST_F_TIMEOUT(cow_reuse, half_was_shared, TIMEOUT)
{
	size_t half = self->nr / 2;
	char *rest = self->mem + half * psize();
	size_t end;

	ASSERT_EQ(madvise(rest, self->size / 2, MADV_DONTFORK), 0);
	share_once(_metadata);
	ASSERT_EQ(madvise(rest, self->size / 2, MADV_DOFORK), 0);
	/* By the other policy, so many writable pages are evidence enough. */
	set_policy("block");
	put(self->mem, 0, NEW);
	end = open_end(self, 0);
	if (end > half)
		end = half;
	expect_faults(_metadata, self, 0, end, 0);
	expect_faults(_metadata, self, end, half, 1);
	expect_faults(_metadata, self, half, self->nr, 0);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

static int splice_two_pages(struct _test_data_cow_reuse *self, int fd)
{
	struct iovec iov[] = {
		{ self->mem + self->j * psize(), psize() },
		{ self->mem + self->r * psize(), psize() },
	};

	return vmsplice(fd, iov, 2, 0) != (ssize_t)(2 * psize());
}

/*
 * References without a mapping, as a child leaves them in a pipe. No page of
 * the folio may be written to, whichever it is that has the reference.
 */
TEST_F_TIMEOUT(cow_reuse, extra_reference, TIMEOUT)
{
	__u64 page[psize() / sizeof(__u64)];
	int fds[2];
	pid_t pid;

	ASSERT_EQ(pipe(fds), 0);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(splice_two_pages(self, fds[1]));
	expect_exit(_metadata, pid);

	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	ASSERT_EQ(read(fds[0], page, psize()), psize());
	EXPECT_EQ(page[0], OLD + self->j);
	ASSERT_EQ(read(fds[0], page, psize()), psize());
	EXPECT_EQ(page[0], OLD + self->r);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/*
 * Forking again
 */

/* Exclusive and shared pages in one folio: the parent stores first. */
TEST_F_TIMEOUT(cow_reuse, second_fork_parent_stores, TIMEOUT)
{
	struct child child;

	share_once(_metadata);
	put(self->mem, self->k, OLD + self->k);
	child_start(_metadata, self, &child, nothing, has_old);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* The same, and the child stores first. */
TEST_F_TIMEOUT(cow_reuse, second_fork_child_stores, TIMEOUT)
{
	struct child child;

	share_once(_metadata);
	put(self->mem, self->k, OLD + self->k);
	child_start(_metadata, self, &child, store_all, nothing);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	fill(self->mem, 0, self->nr, NEW);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* fork() write-protects a window again. */
TEST_F_TIMEOUT(cow_reuse, second_fork_closes_window, TIMEOUT)
{
	share_once(_metadata);
	fill(self->mem, 0, self->nr, NEW);
	share_once(_metadata);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
}

static int keep_special(struct _test_data_cow_reuse *self)
{
	for (size_t i = 0; i < self->nr; i++)
		if (!self->special[i] &&
		    munmap(self->mem + i * psize(), psize()))
			return 1;
	return 0;
}

static int special_has_new(struct _test_data_cow_reuse *self)
{
	for (size_t i = 0; i < self->nr; i++)
		if (self->special[i] && get(self->mem, i) != NEW + i)
			return 1;
	return 0;
}

/* Have small folios of our own at @j and @r, amid those of the large one. */
static void replace_two_pages(struct __test_metadata *_metadata,
			      struct _test_data_cow_reuse *self)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	put(self->mem, self->j, NEW + self->j);
	put(self->mem, self->r, NEW + self->r);
	child_finish(_metadata, &child);
	self->special[self->j] = true;
	self->special[self->r] = true;
}

/* The folio is ours; pages that do not belong to it, in the same VMA, are not. */
TEST_F_TIMEOUT(cow_reuse, foreign_page, TIMEOUT)
{
	struct child child;

	replace_two_pages(_metadata, self);
	child_start(_metadata, self, &child, keep_special, special_has_new);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(store_faults(self->mem, self->j, OTHER), 1);
	EXPECT_EQ(store_faults(self->mem, self->r, OTHER), 1);
	child_finish(_metadata, &child);
}

static int unmap_first_folio(struct _test_data_cow_reuse *self)
{
	return munmap(self->mem, self->size);
}

static int second_folio_has_old(struct _test_data_cow_reuse *self)
{
	return !!mismatches(self, self->nr / 2, self->nr, OLD);
}

/*
 * Map two folios that follow each other in memory, too, as one range. The
 * halves of a folio that was split do.
 */
static bool map_two_folios(struct __test_metadata *_metadata,
			   struct _test_data_cow_reuse *self)
{
	const size_t size = 2 * self->size;
	char *mem = self->base + 3 * self->pmd;
	char cmd[96];

	if (access(SPLIT_FILE, W_OK) || size > self->pmd)
		return false;
	alloc_folio(_metadata, self, mem, size);
	snprintf(cmd, sizeof(cmd), "%d,0x%lx,0x%lx,%d", getpid(),
		 (unsigned long)mem, (unsigned long)(mem + size),
		 sz2ord(self->size, psize()));
	write_file(SPLIT_FILE, cmd, strlen(cmd) + 1);
	ASSERT_TRUE(is_folio(self, mem, self->nr));
	ASSERT_TRUE(is_folio(self, mem + self->size, self->nr));
	ASSERT_EQ(pagemap_get_pfn(self->pagemap_fd, mem) + self->nr,
		  pagemap_get_pfn(self->pagemap_fd, mem + self->size));
	self->mem = mem;
	self->nr *= 2;
	fill(self->mem, 0, self->nr, OLD);
	return true;
}

/* One folio is ours, the one behind it is shared. */
TEST_F_TIMEOUT(cow_reuse, next_folio_shared, TIMEOUT)
{
	struct child child;

	if (!map_two_folios(_metadata, self))
		SKIP(return, "two folios do not fit a page table, or no debugfs");
	child_start(_metadata, self, &child, unmap_first_folio,
		    second_folio_has_old);
	fill(self->mem, 0, self->nr / 2, NEW);
	expect_faults(_metadata, self, self->nr / 2, self->nr, 1);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/*
 * Pins
 */

/* Pinned pages stay exclusive and the child gets copies. */
TEST_F_TIMEOUT(cow_reuse, pinned_before_fork, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	ASSERT_TRUE(pin(fd, self->mem + self->k * psize(), psize(),
			PIN_LONGTERM_TEST_FLAG_USE_WRITE));
	child_start(_metadata, self, &child, nothing, has_old);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->k);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	close(fd);
}

/*
 * An exclusive page proves nothing about others. A read-only pin makes one
 * page exclusive and leaves it write-protected; fork() leaves it at that since
 * it is pinned, and shares all others. Then a store faults, on an exclusive
 * page.
 */
TEST_F_TIMEOUT(cow_reuse, exclusive_page_of_shared_folio, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	share_once(_metadata);
	ASSERT_TRUE(pin(fd, self->mem + self->k * psize(), psize(), 0));
	child_start(_metadata, self, &child, nothing, has_old);
	EXPECT_EQ(store_faults(self->mem, self->k, NEW + self->k), 1);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->k);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	close(fd);
}

/* Unsharing for a read-only pin makes nothing writable. */
TEST_F_TIMEOUT(cow_reuse, unshare_opens_nothing, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);

	if (fd < 0)
		SKIP(return, "no gup_test");
	share_once(_metadata);
	ASSERT_TRUE(pin(fd, self->mem + self->k * psize(), psize(), 0));
	ASSERT_EQ(ioctl(fd, PIN_LONGTERM_TEST_STOP), 0);
	expect_faults(_metadata, self, 0, self->nr, 1);
	EXPECT_TRUE(is_folio(self, self->mem, self->nr));
	close(fd);
}

/*
 * VMAs
 */

/* The rest of the folio is in a read-only VMA. */
TEST_F_TIMEOUT(cow_reuse, readonly_vma_right, TIMEOUT)
{
	char *rest = self->mem + self->k * psize();
	size_t size = (self->nr - self->k) * psize();

	share_once(_metadata);
	ASSERT_EQ(mprotect(rest, size, PROT_READ), 0);
	fill(self->mem, 0, self->k, OLD);
	expect_segv(_metadata, self->mem, self->k, self->nr);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
}

/* The same with the read-only VMA in front, and descending stores. */
TEST_F_TIMEOUT(cow_reuse, readonly_vma_left, TIMEOUT)
{
	share_once(_metadata);
	ASSERT_EQ(mprotect(self->mem, self->k * psize(), PROT_READ), 0);
	for (size_t i = self->nr; i-- > self->k;)
		put(self->mem, i, OLD + i);
	expect_segv(_metadata, self->mem, 0, self->k);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
}

/* A writable VMA is not touched either: somebody may be forking it. */
TEST_F_TIMEOUT(cow_reuse, other_vma_right, TIMEOUT)
{
	char *rest = self->mem + self->k * psize();
	size_t size = (self->nr - self->k) * psize();

	share_once(_metadata);
	ASSERT_EQ(madvise(rest, size, MADV_DONTDUMP), 0);
	fill(self->mem, 0, self->k, NEW);
	expect_faults(_metadata, self, self->k, self->nr, 1);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

TEST_F_TIMEOUT(cow_reuse, other_vma_left, TIMEOUT)
{
	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem, self->k * psize(), MADV_DONTDUMP), 0);
	for (size_t i = self->nr; i-- > self->k;)
		put(self->mem, i, NEW + i);
	expect_faults(_metadata, self, 0, self->k, 1);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* A page without access amid the window. */
TEST_F_TIMEOUT(cow_reuse, prot_none_page, TIMEOUT)
{
	char *page = self->mem + self->j * psize();

	share_once(_metadata);
	ASSERT_EQ(mprotect(page, psize(), PROT_NONE), 0);
	put(self->mem, self->k, OLD + self->k);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGSEGV);
	ASSERT_EQ(mprotect(page, psize(), PROT_READ | PROT_WRITE), 0);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	EXPECT_EQ(try_store(self->mem, self->j, OLD + self->j), 0);
}

/* All PTEs of a window lose write access with their VMA. */
TEST_F_TIMEOUT(cow_reuse, mprotect_after_reuse, TIMEOUT)
{
	share_once(_metadata);
	put(self->mem, self->k, OLD + self->k);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	expect_segv(_metadata, self->mem, 0, self->nr);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
}

/*
 * mprotect() maps exclusive pages writable without a fault: so it shows that
 * all pages of the window, and no others, have become exclusive.
 */
TEST_F_TIMEOUT(cow_reuse, window_is_exclusive, TIMEOUT)
{
	share_once(_metadata);
	put(self->mem, self->k, NEW + self->k);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	expect_window(_metadata, self, self->k);
}

/* mprotect() before the fault does not make pages writable that were shared. */
TEST_F_TIMEOUT(cow_reuse, mprotect_before_reuse, TIMEOUT)
{
	share_once(_metadata);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
}

/* Locked memory stays locked, and is reused as well. */
TEST_F_TIMEOUT(cow_reuse, mlocked, TIMEOUT)
{
	if (mlock(self->mem, self->size))
		SKIP(return, "mlock: %s", strerror(errno));
	share_once(_metadata);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(smaps_bytes(self->mem, "Locked:"), self->size);
	EXPECT_TRUE(is_folio(self, self->mem, self->nr));
}

/*
 * Holes and other PTEs that do not map the folio
 */

static void mark_two_pages(struct __test_metadata *_metadata,
			   struct _test_data_cow_reuse *self, int advice)
{
	self->special[self->j] = true;
	self->special[self->r] = true;
	ASSERT_EQ(madvise(self->mem + self->j * psize(), psize(), advice), 0);
	ASSERT_EQ(madvise(self->mem + self->r * psize(), psize(), advice), 0);
}

TEST_F_TIMEOUT(cow_reuse, holes, TIMEOUT)
{
	share_once(_metadata);
	mark_two_pages(_metadata, self, MADV_DONTNEED);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(pagemap(self, self->j) & PM_PRESENT, 0);
	EXPECT_EQ(pagemap(self, self->r) & PM_PRESENT, 0);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->r), 0);
}

/* The zero page in the hole stays what it is, for the whole system. */
TEST_F_TIMEOUT(cow_reuse, zero_page, TIMEOUT)
{
	char *fresh = self->base;

	share_once(_metadata);
	mark_two_pages(_metadata, self, MADV_DONTNEED);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->r), 0);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(store_faults(self->mem, self->j, OTHER), 1);
	EXPECT_EQ(store_faults(self->mem, self->r, OTHER), 1);

	ASSERT_EQ(mprotect(fresh, psize(), PROT_READ), 0);
	EXPECT_EQ(get(fresh, 0), 0);
}

TEST_F_TIMEOUT(cow_reuse, guard_pages, TIMEOUT)
{
	if (madvise(self->base, psize(), MADV_GUARD_INSTALL))
		SKIP(return, "no guard regions");
	share_once(_metadata);
	mark_two_pages(_metadata, self, MADV_GUARD_INSTALL);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGSEGV);
	EXPECT_EQ(try_store(self->mem, self->r, OTHER), SIGSEGV);
}

/* Pages that were replaced while they were shared, and swapped out then. */
TEST_F_TIMEOUT(cow_reuse, swapped_pages, TIMEOUT)
{
	replace_two_pages(_metadata, self);
	mark_two_pages(_metadata, self, MADV_PAGEOUT);
	if (!(pagemap(self, self->j) & pagemap(self, self->r) & PM_SWAP))
		SKIP(return, "MADV_PAGEOUT did not swap: no swap space?");
	put(self->mem, self->k, NEW + self->k);
	EXPECT_TRUE(pagemap(self, self->j) & pagemap(self, self->r) & PM_SWAP);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(get(self->mem, self->j), NEW + self->j);
	EXPECT_EQ(get(self->mem, self->r), NEW + self->r);
}

/* The whole folio was swapped out and is read back, in whatever pieces. */
TEST_F_TIMEOUT(cow_reuse, swapped_folio, TIMEOUT)
{
	struct child child;

	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	if (!(pagemap(self, self->k) & PM_SWAP))
		SKIP(return, "MADV_PAGEOUT did not swap: no swap space?");
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	child_start(_metadata, self, &child, nothing, has_old);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/*
 * Moved pages
 */

/* Halves of the folio in two page tables; the second starts its table. */
TEST_F_TIMEOUT(cow_reuse, moved_to_other_table, TIMEOUT)
{
	char *to = self->base + 4 * self->pmd;
	size_t half = self->nr / 2;
	char *old = self->mem;

	share_once(_metadata);
	move(_metadata, old + half * psize(), half * psize(), to);
	self->nr = half;
	self->mem = to;
	EXPECT_EQ(mismatches(self, 0, half, OLD + half), 0);
	put(self->mem, 0, NEW);
	expect_window(_metadata, self, 0);

	self->mem = old;
	EXPECT_EQ(mismatches(self, 0, half, OLD), 0);
	put(self->mem, half - 1, NEW + half - 1);
	expect_window(_metadata, self, half - 1);
	EXPECT_EQ(try_store(self->mem, half, OTHER), SIGSEGV);
	EXPECT_EQ(try_store(to, half, OTHER), SIGSEGV);
}

/* The folio's alignment is not that of its addresses. */
TEST_F_TIMEOUT(cow_reuse, moved_unaligned, TIMEOUT)
{
	char *to = self->base + 3 * self->pmd + 3 * psize();

	share_once(_metadata);
	move(_metadata, self->mem, self->size, to);
	self->mem = to;
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	put(self->mem, self->k, NEW + self->k);
	expect_window(_metadata, self, self->k);
	EXPECT_TRUE(is_folio(self, self->mem, self->nr));
}

/* Moved by some pages in the same page table, and cut in two by that. */
TEST_F_TIMEOUT(cow_reuse, moved_in_table, TIMEOUT)
{
	size_t half = self->nr / 2;
	char *old = self->mem;
	char *to = old + (half + 3) * psize();

	share_once(_metadata);
	move(_metadata, old + half * psize(), half * psize(),
	     self->base + 5 * self->pmd);
	move(_metadata, self->base + 5 * self->pmd, half * psize(), to);
	self->nr = half;
	put(self->mem, half - 1, NEW + half - 1);
	expect_window(_metadata, self, half - 1);
	self->mem = to;
	EXPECT_EQ(mismatches(self, 0, half, OLD + half), 0);
	put(self->mem, half / 2, NEW + half / 2);
	expect_window(_metadata, self, half / 2);
}

/*
 * Have page tables, of which some are neighbours in memory as well: the last
 * ones of so many are, when the memory in pieces is used up.
 */
static char *map_tables(struct __test_metadata *_metadata, size_t pmd)
{
	size_t size = (NR_OTHER_TABLES + NR_TABLES) * pmd;
	char *mem = mmap(NULL, size, PROT_READ,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	ASSERT_NE(mem, MAP_FAILED);
	for (size_t i = 0; i < size; i += pmd)
		FORCE_READ(mem[i]);
	mem += NR_OTHER_TABLES * pmd;
	return mem - ((uintptr_t)mem & (pmd - 1));
}

/*
 * The window ends with the page table, however far the writer has come, and
 * whatever may look like a PTE in the memory before and behind the table.
 */
TEST_F_TIMEOUT(cow_reuse, moved_across_tables, TIMEOUT)
{
	char *tables = map_tables(_metadata, self->pmd);
	size_t half = self->nr / 2;
	char *to;

	for (size_t i = 1; i < NR_TABLES; i++) {
		to = tables + i * self->pmd - half * psize();
		move(_metadata, self->mem, self->size, to);
		self->mem = to;
		share_once(_metadata);
		fill(self->mem, 0, half, NEW);
		expect_faults(_metadata, self, half, self->nr, 1);
		share_once(_metadata);
		for (size_t page = self->nr; page-- > half;)
			put(self->mem, page, NEW + page);
		expect_faults(_metadata, self, 0, half, 1);
	}
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* Two pages of the folio have changed places. */
TEST_F_TIMEOUT(cow_reuse, moved_out_of_order, TIMEOUT)
{
	char *j = self->mem + self->j * psize();
	char *k = self->mem + self->k * psize();
	struct child child;

	share_once(_metadata);
	move(_metadata, j, psize(), self->base);
	move(_metadata, k, psize(), j);
	move(_metadata, self->base, psize(), k);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->k);
	EXPECT_EQ(get(self->mem, self->k), OLD + self->j);
	put(self->mem, self->j, OLD + self->j);
	put(self->mem, self->k, OLD + self->k);
	child_start(_metadata, self, &child, nothing, has_old);
	fill(self->mem, 0, self->nr, NEW);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* A page of another folio, which is shared, in place of one of this. */
TEST_F_TIMEOUT(cow_reuse, moved_from_other_folio, TIMEOUT)
{
	char *other = self->base + 3 * self->pmd;
	struct child child;

	alloc_folio(_metadata, self, other, self->size);
	fill(other, 0, self->nr, NEW);
	move(_metadata, other + self->j * psize(), psize(),
	     self->mem + self->j * psize());
	self->special[self->j] = true;
	child_start(_metadata, self, &child, keep_special, special_has_new);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, OTHER);
	child_finish(_metadata, &child);
	EXPECT_EQ(get(self->mem, self->j), OTHER + self->j);
}

/*
 * Tracking of writes
 */

/* One store makes one page soft-dirty, and others are not kept from it. */
TEST_F_TIMEOUT(cow_reuse, soft_dirty, TIMEOUT)
{
	if (!softdirty_supported())
		SKIP(return, "no soft-dirty tracking");
	share_once(_metadata);
	clear_softdirty();
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 0);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_TRUE(pagemap(self, self->k) & PM_SOFT_DIRTY);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 1);
	put(self->mem, self->j, NEW + self->j);
	EXPECT_TRUE(pagemap(self, self->j) & PM_SOFT_DIRTY);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 2);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), self->nr);
}

/* The same when some pages in the window are soft-dirty already. */
TEST_F_TIMEOUT(cow_reuse, soft_dirty_mixed, TIMEOUT)
{
	if (!softdirty_supported())
		SKIP(return, "no soft-dirty tracking");
	clear_softdirty();
	put(self->mem, self->k, NEW + self->k);
	put(self->mem, self->j, NEW + self->j);
	share_once(_metadata);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 2);
	put(self->mem, self->r, NEW + self->r);
	EXPECT_TRUE(pagemap(self, self->r) & PM_SOFT_DIRTY);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 3);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), self->nr);
}

/* Write-protected pages in the window still go to the handler. */
TEST_F_TIMEOUT(cow_reuse, uffd_wp, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS);
	char *j = self->mem + self->j * psize();
	char *r = self->mem + self->r * psize();

	if (uffd < 0)
		SKIP(return, "no userfaultfd write protection");
	share_once(_metadata);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, false, true, false), 0);
	ASSERT_EQ(uffd_protect(uffd, j, psize(), true), 0);
	ASSERT_EQ(uffd_protect(uffd, r, psize(), true), 0);
	self->special[self->j] = true;
	self->special[self->r] = true;
	put(self->mem, self->k, NEW + self->k);
	EXPECT_TRUE(pagemap(self, self->j) & pagemap(self, self->r) & PM_UFFD_WP);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), 0);
	expect_window(_metadata, self, self->k);

	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	EXPECT_EQ(try_store(self->mem, self->r, OTHER), SIGBUS);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	ASSERT_EQ(uffd_protect(uffd, j, psize(), false), 0);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), 0);
	close(uffd);
}

/* Asynchronous tracking tells exactly the pages that were written. */
TEST_F_TIMEOUT(cow_reuse, uffd_wp_async, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_ASYNC);

	if (uffd < 0)
		SKIP(return, "no asynchronous write protection");
	share_once(_metadata);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, false, true, false), 0);
	ASSERT_EQ(uffd_protect(uffd, self->mem, self->size, true), 0);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(pagemap(self, self->k) & PM_UFFD_WP, 0);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), self->nr - 1);
	put(self->mem, self->j, NEW + self->j);
	EXPECT_EQ(pagemap(self, self->j) & PM_UFFD_WP, 0);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), self->nr - 2);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), 0);
	close(uffd);
}

/* Pages without access in an accessible VMA. */
TEST_F_TIMEOUT(cow_reuse, uffd_rwp, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_RWP | UFFD_FEATURE_SIGBUS);
	char *j = self->mem + self->j * psize();

	if (uffd < 0)
		SKIP(return, "no userfaultfd read-write protection");
	share_once(_metadata);
	ASSERT_EQ(uffd_rwp_register(uffd, self->mem, self->size), 0);
	ASSERT_EQ(uffd_rwprotect(uffd, j, psize(), true), 0);
	self->special[self->j] = true;
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	ASSERT_EQ(uffd_rwprotect(uffd, j, psize(), false), 0);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), 0);
	close(uffd);
}

/*
 * Bytes that one accessed or dirty bit stands for, at most: those of a contpte
 * block are read as one.
 */
static long bit_granule(struct _test_data_cow_reuse *self)
{
#ifdef __aarch64__
	if (self->size >= self->block)
		return self->block;
#endif
	return psize();
}

/* Pages that nobody touched do not become young. */
TEST_F_TIMEOUT(cow_reuse, accessed, TIMEOUT)
{
	share_once(_metadata);
	write_file("/proc/self/clear_refs", "1", sizeof("1"));
	EXPECT_EQ(smaps_bytes(self->mem, "Referenced:"), 0);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_GE(smaps_bytes(self->mem, "Referenced:"), psize());
	EXPECT_LE(smaps_bytes(self->mem, "Referenced:"), bit_granule(self));
	expect_window(_metadata, self, self->k);
}

/* Pages that were read stay young. The fork is after the bits are cleared: it flushes. */
TEST_F_TIMEOUT(cow_reuse, accessed_stays, TIMEOUT)
{
	write_file("/proc/self/clear_refs", "1", sizeof("1"));
	share_once(_metadata);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	EXPECT_EQ(smaps_bytes(self->mem, "Referenced:"), self->size);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(smaps_bytes(self->mem, "Referenced:"), self->size);
	expect_window(_metadata, self, self->k);
}

/* Pages that were written to before fork() write-protected them stay dirty. */
TEST_F_TIMEOUT(cow_reuse, dirty_stays, TIMEOUT)
{
	share_once(_metadata);
	EXPECT_EQ(smaps_bytes(self->mem, "Private_Dirty:"), self->size);
	put(self->mem, self->k, NEW + self->k);
	EXPECT_EQ(smaps_bytes(self->mem, "Private_Dirty:"), self->size);
	expect_window(_metadata, self, self->k);
}

/* Pages that nobody wrote to stay clean and can be freed. */
TEST_F_TIMEOUT(cow_reuse, lazyfree_stays_clean, TIMEOUT)
{
	long dirty;

	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_FREE), 0);
	EXPECT_EQ(smaps_bytes(self->mem, "LazyFree:"), self->size);
	put(self->mem, self->k, NEW + self->k);
	dirty = smaps_bytes(self->mem, "Private_Dirty:");
	EXPECT_GE(dirty, psize());
	EXPECT_LE(dirty, bit_granule(self));
	EXPECT_EQ(smaps_bytes(self->mem, "LazyFree:"), self->size - dirty);
	expect_window(_metadata, self, self->k);
	EXPECT_EQ(smaps_bytes(self->mem, "LazyFree:"), 0);
}

/* Pages that were written to without a fault are not lost as clean ones. */
TEST_F_TIMEOUT(cow_reuse, lazyfree_keeps_stores, TIMEOUT)
{
	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_FREE), 0);
	put(self->mem, self->k, NEW + self->k);
	put(self->mem, self->j, NEW + self->j);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	EXPECT_EQ(get(self->mem, self->j), NEW + self->j);
}

/*
 * Writes by others than the CPU's stores
 */

/* The kernel's copy to user memory takes the fault. */
TEST_F_TIMEOUT(cow_reuse, kernel_writes, TIMEOUT)
{
	__u64 value = NEW + self->k;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	ASSERT_EQ(write(fds[1], &value, sizeof(value)), sizeof(value));
	share_once(_metadata);
	ASSERT_EQ(read(fds[0], self->mem + self->k * psize(), sizeof(value)),
		  sizeof(value));
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	expect_window(_metadata, self, self->k);
}

static int write_to_parent(struct _test_data_cow_reuse *self)
{
	if (munmap(self->mem, self->size))
		return 1;
	return !write_to_process(getppid(), self->mem + self->k * psize(), OTHER);
}

/* Another process takes the fault: nothing of its own is touched. */
TEST_F_TIMEOUT(cow_reuse, other_process_writes, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, write_to_parent, nothing);
	EXPECT_EQ(get(self->mem, self->k), OTHER);
	expect_window(_metadata, self, self->k);
	child_finish(_metadata, &child);
}

/* A forced write changes a page of a read-only VMA, which stays read-only. */
static void expect_forced_write(struct __test_metadata *_metadata,
				struct _test_data_cow_reuse *self)
{
	EXPECT_EQ(get(self->mem, self->k), OTHER);
	self->special[self->k] = true;
	expect_segv(_metadata, self->mem, 0, self->nr);
	EXPECT_EQ(get(self->mem, self->k), OTHER);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	fill(self->mem, 0, self->nr, NEW);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

TEST_F_TIMEOUT(cow_reuse, forced_write_proc_mem, TIMEOUT)
{
	int fd = open("/proc/self/mem", O_RDWR);
	__u64 value = OTHER;
	ssize_t ret;

	ASSERT_GE(fd, 0);
	share_once(_metadata);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ret = pwrite(fd, &value, sizeof(value),
		     (uintptr_t)self->mem + self->k * psize());
	close(fd);
	if (ret < 0)
		SKIP(return, "forced writes to /proc/self/mem are not allowed");
	expect_forced_write(_metadata, self);
}

/* Shares the address space, as the folio would be shared otherwise. */
static int poke_parent(void *arg)
{
	struct _test_data_cow_reuse *self = arg;

	return !poke_process(getppid(), self->mem + self->k * psize(), OTHER);
}

TEST_F_TIMEOUT(cow_reuse, forced_write_ptrace, TIMEOUT)
{
	size_t size = 64 << 10;
	char *stack = malloc(size);
	pid_t pid;

	ASSERT_NE(stack, NULL);
	share_once(_metadata);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	pid = clone(poke_parent, stack + size, CLONE_VM | SIGCHLD, self);
	ASSERT_GE(pid, 0);
	expect_exit(_metadata, pid);
	expect_forced_write(_metadata, self);
	free(stack);
}

/*
 * Races
 */

struct racer {
	char *mem;
	size_t first;
	size_t nr;
	bool *stop;
	__u64 lost;
};

/* Increments every other page; nobody else in this process writes there. */
static void *race_writer(void *arg)
{
	struct racer *racer = arg;

	for (__u64 value = 1; !__atomic_load_n(racer->stop, __ATOMIC_RELAXED);
	     value++) {
		for (size_t i = racer->first; i < racer->nr; i += 2) {
			racer->lost += get(racer->mem, i) != value - 1;
			put(racer->mem, i, value);
		}
	}
	return NULL;
}

/* What a child has got at fork() does not change, nor what it stores. */
static int race_child(struct _test_data_cow_reuse *self)
{
	static __u64 seen[MAX_PAGES];
	int bad = 0;

	for (size_t i = 0; i < self->nr; i++)
		seen[i] = get(self->mem, i);
	usleep(500);
	for (size_t i = 0; i < self->nr; i++)
		bad |= get(self->mem, i) != seen[i];
	fill(self->mem, 0, self->nr, CHILD);
	usleep(500);
	return bad || mismatches(self, 0, self->nr, CHILD);
}

/* Fork for some seconds; the number of children that saw something change. */
static int race_forks(struct __test_metadata *_metadata,
		      struct _test_data_cow_reuse *self)
{
	time_t end = time(NULL) + RACE_SECONDS;
	int bad = 0, status;
	pid_t pid;

	while (time(NULL) <= end) {
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid)
			_exit(race_child(self));
		ASSERT_EQ(waitpid(pid, &status, 0), pid);
		bad += !WIFEXITED(status) || WEXITSTATUS(status);
		/* Let the writers reuse the folio alone. */
		usleep(2000);
	}
	return bad;
}

static void race(struct __test_metadata *_metadata, struct _test_data_cow_reuse *self)
{
	bool stop = false;
	struct racer racers[2];
	pthread_t threads[2];

	for (size_t i = 0; i < self->nr; i++)
		put(self->mem, i, 0);
	for (int i = 0; i < 2; i++) {
		racers[i] = (struct racer){ self->mem, i, self->nr, &stop, 0 };
		ASSERT_EQ(pthread_create(&threads[i], NULL, race_writer,
					 &racers[i]), 0);
	}
	EXPECT_EQ(race_forks(_metadata, self), 0)
		TH_LOG("children saw their memory change");
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
		EXPECT_EQ(racers[i].lost, 0) TH_LOG("stores were lost");
	}
}

/* The VMA that is being forked is the one that is written to. */
TEST_F_TIMEOUT(cow_reuse, race_with_fork, TIMEOUT)
{
	race(_metadata, self);
}

/*
 * The folio spans two VMAs and page tables: fork() may be sharing the pages in
 * the first one when a fault in the second one finds the folio exclusive.
 */
TEST_F_TIMEOUT(cow_reuse, race_with_fork_of_other_vma, TIMEOUT)
{
	char *second = self->base + 4 * self->pmd;
	char *to = second - self->k * psize();

	move(_metadata, self->mem, self->size, to);
	self->mem = to;
	ASSERT_EQ(madvise(second, (self->nr - self->k) * psize(), MADV_DONTDUMP), 0);
	race(_metadata, self);
}

/*
 * Policy: how many faults it takes
 */

/* Store to the pages in sequence; note at which steps there was a fault. */
static size_t walk(struct _test_data_cow_reuse *self)
{
	size_t faults = 0;

	for (size_t i = 0; i < self->nr; i++) {
		size_t page = self->sequence[i];

		if (store_faults(self->mem, page, NEW + page))
			self->fault_at[faults++] = i;
	}
	return faults;
}

static void ascending(struct _test_data_cow_reuse *self)
{
	for (size_t i = 0; i < self->nr; i++)
		self->sequence[i] = i;
}

static void descending(struct _test_data_cow_reuse *self)
{
	for (size_t i = 0; i < self->nr; i++)
		self->sequence[i] = self->nr - 1 - i;
}

static void shuffled(struct _test_data_cow_reuse *self)
{
	for (size_t i = 0; i < self->nr; i++)
		self->sequence[i] = shuffled_page(i, self->nr);
}

static size_t nr_blocks(struct _test_data_cow_reuse *self)
{
	return self->size <= self->block ? 1 : self->size / self->block;
}

/* A window that doubles: few faults, and each one's is not the smaller one. */
static void expect_growth(struct __test_metadata *_metadata,
			  struct _test_data_cow_reuse *self)
{
	size_t block = self->nr / nr_blocks(self);
	size_t faults = walk(self);
	size_t *at = self->fault_at;

	EXPECT_EQ(at[0], 0);
	EXPECT_LE(faults, __builtin_ctzl(nr_blocks(self)) + 2);
	EXPECT_GE(faults, nr_blocks(self) < 3 ? nr_blocks(self) : 3);
	if (faults > 1)
		EXPECT_EQ(at[1], block);
	for (size_t i = 2; i < faults; i++)
		EXPECT_GE(at[i] - at[i - 1], at[i - 1] - at[i - 2]);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

TEST_F_TIMEOUT(cow_reuse, run_ascending, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	ascending(self);
	expect_growth(_metadata, self);
}

TEST_F_TIMEOUT(cow_reuse, run_descending, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	descending(self);
	expect_growth(_metadata, self);
}

/* What was written before a fork is no evidence after it. */
TEST_F_TIMEOUT(cow_reuse, run_forgets_at_fork, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	ascending(self);
	walk(self);
	share_once(_metadata);
	expect_growth(_metadata, self);
}

/* A run opens twice its length beyond the block, and no more. */
TEST_F_TIMEOUT(cow_reuse, run_opens_twice, TIMEOUT)
{
	size_t block = self->block / psize();

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) < 8)
		SKIP(return, "folio too small for a run");
	share_once(_metadata);
	put(self->mem, 0, NEW);
	put(self->mem, block, NEW + block);
	expect_faults(_metadata, self, 0, 4 * block, 0);
	expect_faults(_metadata, self, 4 * block, self->nr, 1);
}

/* However long the run is, a fault opens half of a page table at most. */
TEST_F_TIMEOUT(cow_reuse, run_is_limited, TIMEOUT)
{
	size_t max = self->pmd / psize() / 2;
	size_t faults, longest = 0;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (self->nr <= max)
		SKIP(return, "folio too small to reach the limit");
	share_once(_metadata);
	ascending(self);
	faults = walk(self);
	for (size_t i = 0; i < faults; i++) {
		size_t end = i + 1 < faults ? self->fault_at[i + 1] : self->nr;

		if (end - self->fault_at[i] > longest)
			longest = end - self->fault_at[i];
	}
	EXPECT_LE(longest, max);
}

/* Have each @step-th block writable, but the first one. */
static void open_blocks(struct _test_data_cow_reuse *self, size_t step)
{
	size_t block = self->block / psize();

	set_policy("block");
	for (size_t i = step; i < nr_blocks(self); i += step)
		put(self->mem, i * block, NEW + i * block);
	set_policy("run");
}

/* In [from, to), expect each @step-th block to be writable, and no other. */
static void expect_blocks(struct __test_metadata *_metadata,
			  struct _test_data_cow_reuse *self, size_t from, size_t to,
			  size_t step)
{
	size_t block = self->block / psize();

	for (size_t i = from; i < to; i++)
		expect_faults(_metadata, self, i * block, (i + 1) * block,
			      i % step != 0);
}

/* Where every other block is written to, the rest follows; half a table at most. */
TEST_F_TIMEOUT(cow_reuse, run_dense, TIMEOUT)
{
	size_t end = self->pmd / 2 / self->block;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) < 16)
		SKIP(return, "folio too small to be dense");
	share_once(_metadata);
	open_blocks(self, 2);
	put(self->mem, 0, NEW);
	expect_blocks(_metadata, self, 0, end, 1);
	expect_blocks(_metadata, self, end, nr_blocks(self), 2);
}

/* Every fourth one is not enough. */
TEST_F_TIMEOUT(cow_reuse, run_sparse, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) < 8)
		SKIP(return, "folio too small to be sparse");
	share_once(_metadata);
	open_blocks(self, 4);
	put(self->mem, 0, NEW);
	expect_blocks(_metadata, self, 0, nr_blocks(self), 4);
}

/* Nor are three blocks, even if they are those that are looked at first. */
TEST_F_TIMEOUT(cow_reuse, run_three_blocks, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) != 16)
		SKIP(return, "not a folio of 16 blocks");
	share_once(_metadata);
	open_blocks(self, 5);
	put(self->mem, 0, NEW);
	expect_blocks(_metadata, self, 0, nr_blocks(self), 5);
}

/* Any order: no page faults that is in a block with one that was written. */
TEST_F_TIMEOUT(cow_reuse, run_shuffled, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	shuffled(self);
	EXPECT_LE(walk(self), nr_blocks(self));
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* Stores far from each other open their blocks and nothing else. */
TEST_F_TIMEOUT(cow_reuse, run_scattered, TIMEOUT)
{
	size_t a = self->nr / 4 + 1;
	size_t b = self->nr / 4 * 3;
	size_t a_end, b_first;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) < 8)
		SKIP(return, "folio too small for scattered stores");
	share_once(_metadata);
	EXPECT_EQ(store_faults(self->mem, a, NEW + a), 1);
	EXPECT_EQ(store_faults(self->mem, b, NEW + b), 1);
	a_end = open_end(self, a);
	b_first = open_first(self, b);
	expect_faults(_metadata, self, 0, open_first(self, a), 1);
	expect_faults(_metadata, self, open_first(self, a), a_end, 0);
	expect_faults(_metadata, self, a_end, b_first, 1);
	expect_faults(_metadata, self, b_first, open_end(self, b), 0);
	expect_faults(_metadata, self, open_end(self, b), self->nr, 1);
}

static long reuse_events(void)
{
	char buf[256];
	long count = 0;
	FILE *fp = fopen("/proc/vmstat", "r");

	if (fp && check_for_pattern(fp, "pgreuse ", buf, sizeof(buf)))
		count = strtol(buf + strlen("pgreuse "), NULL, 10);
	if (fp)
		fclose(fp);
	return count;
}

/* A fault counts once, whatever it maps. There is some noise by others. */
TEST_F_TIMEOUT(cow_reuse, counted_once, TIMEOUT)
{
	long before, faults;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (self->nr < 128)
		SKIP(return, "folio too small to tell it from noise");
	share_once(_metadata);
	ascending(self);
	before = reuse_events();
	faults = walk(self);
	EXPECT_GE(reuse_events() - before, faults);
	EXPECT_LT(reuse_events() - before, faults + 64);
}

/* Writable pages that have replaced the folio's own are no evidence. */
TEST_F_TIMEOUT(cow_reuse, run_needs_own_pages, TIMEOUT)
{
	size_t first = self->block / psize();
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (nr_blocks(self) < 3)
		SKIP(return, "folio too small for a run");
	child_start(_metadata, self, &child, nothing, has_old);
	set_policy("page");
	fill(self->mem, 0, first, NEW);
	set_policy("run");
	child_finish(_metadata, &child);
	put(self->mem, first, NEW + first);
	expect_faults(_metadata, self, 0, 2 * first, 0);
	expect_faults(_metadata, self, 2 * first, self->nr, 1);
}

/* Another folio's writable pages are no evidence. */
TEST_F_TIMEOUT(cow_reuse, run_stays_in_folio, TIMEOUT)
{
	size_t first;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (!map_two_folios(_metadata, self))
		SKIP(return, "two folios do not fit a page table, or no debugfs");
	share_once(_metadata);
	first = self->nr / 2;
	fill(self->mem, 0, first, NEW);
	put(self->mem, first, NEW + first);
	/* The block is the folio's part of it, where the folio is smaller. */
	if (self->size < self->block)
		expect_faults(_metadata, self, first, self->nr, 0);
	else
		expect_faults(_metadata, self, first, open_end(self, first), 0);
	if (self->size > self->block)
		expect_faults(_metadata, self, open_end(self, first), self->nr, 1);
}

TEST_F_TIMEOUT(cow_reuse, block_ascending, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	set_policy("block");
	ascending(self);
	EXPECT_EQ(walk(self), nr_blocks(self));
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

TEST_F_TIMEOUT(cow_reuse, block_shuffled, TIMEOUT)
{
	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	share_once(_metadata);
	set_policy("block");
	shuffled(self);
	EXPECT_EQ(walk(self), nr_blocks(self));
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* What kernels without a window do. */
TEST_F_TIMEOUT(cow_reuse, page_ascending, TIMEOUT)
{
	share_once(_metadata);
	set_policy("page");
	ascending(self);
	EXPECT_EQ(walk(self), self->nr);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/*
 * The debugfs file
 */

TEST(policy_choices)
{
	static const char * const choices[] = { "page", "block", "run" };
	char active[16];

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
		set_policy(choices[i]);
		read_setting(POLICY_FILE, active, sizeof(active));
		EXPECT_STREQ(active, choices[i]);
	}
}

TEST(policy_wrong_input)
{
	static const char * const wrong[] = {
		"none", "pages", "blo", "Run", "1", "page, block and run"
	};
	char active[16];
	int fd;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	set_policy("block");
	fd = open(POLICY_FILE, O_WRONLY);
	ASSERT_GE(fd, 0);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(write(fd, wrong[i], strlen(wrong[i])), -1);
		EXPECT_EQ(errno, EINVAL) TH_LOG("input: %s", wrong[i]);
		read_setting(POLICY_FILE, active, sizeof(active));
		EXPECT_STREQ(active, "block");
	}
	close(fd);
	set_policy("run");
}

/*
 * The tracepoint: one event for each fault, with the pages and what decided about them
 */

TEST_F_TIMEOUT(cow_reuse, traced_block, TIMEOUT)
{
	size_t page = self->k;

	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	share_once(_metadata);
	put(self->mem, page, NEW + page);
	EXPECT_EQ(traced("cow_fault: "), 1);
	EXPECT_EQ(traced("address=%p order=%d action=reuse reason=block nr_pages=%zu\n",
			 self->mem + page * psize(), sz2ord(self->size, psize()),
			 open_end(self, page) - open_first(self, page)), 1);
	trace_stop();
}

TEST_F_TIMEOUT(cow_reuse, traced_run, TIMEOUT)
{
	size_t block = self->block / psize();

	if (nr_blocks(self) < 8)
		SKIP(return, "folio too small for a run");
	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	share_once(_metadata);
	put(self->mem, 0, NEW);
	put(self->mem, block, NEW + block);
	EXPECT_EQ(traced("action=reuse reason=run nr_pages=%zu\n", 3 * block), 1);
	EXPECT_EQ(traced("cow_fault: "), 2);
	trace_stop();
}

TEST_F_TIMEOUT(cow_reuse, traced_dense, TIMEOUT)
{
	if (nr_blocks(self) < 16)
		SKIP(return, "folio too small to be dense");
	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	share_once(_metadata);
	open_blocks(self, 2);
	put(self->mem, 0, NEW);
	EXPECT_EQ(traced("action=reuse reason=dense"), 1);
	EXPECT_EQ(traced("action=reuse reason=block"), nr_blocks(self) / 2 - 1);
	EXPECT_EQ(traced("cow_fault: "), nr_blocks(self) / 2);
	trace_stop();
}

/* Faults that map one page have no event. */
TEST_F_TIMEOUT(cow_reuse, traced_page, TIMEOUT)
{
	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	share_once(_metadata);
	set_policy("page");
	EXPECT_EQ(store_faults(self->mem, self->k, NEW), 1);
	EXPECT_EQ(traced("cow_fault: "), 0);
	set_policy("run");
	trace_stop();
}

static int wait_for_parent(void)
{
	char c = 0;

	return write(STDOUT_FILENO, &c, 1) != 1 || read(STDIN_FILENO, &c, 1) != 1;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], WAIT_ARG))
		return wait_for_parent();

	/* Here, so that they are restored even if a test is killed. */
	if (!geteuid()) {
		thp_save_settings();
		read_setting(POLICY_FILE, saved_policy, sizeof(saved_policy));
		save_settings(NULL, 0);
		atexit(restore);
	}
	return test_harness_run(argc, argv);
}
