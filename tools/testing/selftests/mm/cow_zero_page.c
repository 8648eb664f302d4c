// SPDX-License-Identifier: GPL-2.0
/*
 * Write faults on pages that were read before, and are mapped to the zero page.
 *
 * Where all of an aligned block reads as zeroes because nothing was written there,
 * such a fault may allocate a large folio, as a first touch that writes does. Tests
 * know one aligned block of the size of the folio. Without the debugfs file that
 * selects how faults copy, they expect that a fault allocates one page, as older
 * kernels do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/mman.h>
#include <sys/prctl.h>

#include "cow_util.h"

#define POLICY_FILE	"/sys/kernel/debug/cow/copy"
#define KSM_RUN_FILE	"/sys/kernel/mm/ksm/run"
#define KSM_ZERO_FILE	"/sys/kernel/mm/ksm/use_zero_pages"

/* A page of the block that tests write to, one that they treat apart. */
#define K	2
#define J	1

FIXTURE(cow_zero_page)
{
	char *area;	/* address space that is reserved for the test */
	size_t area_size;
	char *mem;	/* a PMD boundary inside; where the block is mapped */
	size_t size;	/* of the block, and of the folio */
	size_t nr;	/* of its pages */
	int large;	/* order of the folio that a write to it allocates */
	bool special[512];	/* for count_pages_with(): none */
	int pagemap_fd;
	int kpageflags_fd;
};

FIXTURE_VARIANT(cow_zero_page)
{
	size_t size;
};

FIXTURE_VARIANT_ADD(cow_zero_page, 16K) { .size = 16 << 10, };
FIXTURE_VARIANT_ADD(cow_zero_page, 64K) { .size = 64 << 10, };
FIXTURE_VARIANT_ADD(cow_zero_page, 1M) { .size = 1 << 20, };

/* Files with settings of the whole system, restored in the end. */
static struct setting settings[] = {
	{ POLICY_FILE },
	{ KSM_RUN_FILE },
	{ KSM_ZERO_FILE },
};

static void restore(void)
{
	restore_settings(settings, ARRAY_SIZE(settings));
}

static int size_order(struct _test_data_cow_zero_page *self)
{
	return sz2ord(self->size, psize());
}

/* Page tables and folios */

static long rss(char *mem)
{
	return smaps_bytes(mem, "Rss:");
}

static int order_from(struct _test_data_cow_zero_page *self, size_t page)
{
	return mapped_order(self->pagemap_fd, self->kpageflags_fd, self->mem, page,
			    self->nr);
}

static size_t not_zero(char *mem, size_t from, size_t to)
{
	size_t bad = 0;

	for (size_t i = from; i < to; i++)
		bad += get(mem, i) != 0;
	return bad;
}

/* Read pages, which maps the zero page; they have not been written to. */
static void read_zeroes(struct __test_metadata *_metadata, char *mem, size_t from,
			size_t to)
{
	ASSERT_EQ(not_zero(mem, from, to), 0);
}

static char *map_at(struct __test_metadata *_metadata, char *mem, size_t size,
		    int prot)
{
	char *map = mmap(mem, size, prot, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ASSERT_EQ(map, mem);
	ASSERT_EQ(madvise(mem, size, MADV_HUGEPAGE), 0);
	return map;
}

/*
 * Write to a page that is zero, in a block that is zero or not mapped but for it.
 * Expect a folio of @order, and the other pages of it to be zero.
 */
static void expect_write(struct __test_metadata *_metadata,
			 struct _test_data_cow_zero_page *self, size_t page, int order)
{
	const size_t first = page & ~((1UL << order) - 1);
	const size_t end = first + (1UL << order);
	const long before = rss(self->mem);

	EXPECT_EQ(store_faults(self->mem, page, NEW + page), 1);
	EXPECT_EQ(order_from(self, first), order);
	EXPECT_EQ(rss(self->mem) - before, (end - first) * psize());
	EXPECT_EQ(not_zero(self->mem, first, page), 0);
	EXPECT_EQ(not_zero(self->mem, page + 1, end), 0);
	EXPECT_EQ(get(self->mem, page), NEW + page);
}

static const char *unsupported(size_t size)
{
	const char *reason = unsupported_size(size);

	if (!reason && size >= read_pmd_pagesize())
		return "the page table is as small as the folio";
	return reason;
}

FIXTURE_SETUP(cow_zero_page)
{
	const char *reason = unsupported(variant->size);
	size_t pmd = read_pmd_pagesize();

	self->area = MAP_FAILED;
	if (reason)
		SKIP(return, "%s", reason);
	restore();
	self->size = variant->size;
	self->nr = variant->size / psize();
	self->large = access(POLICY_FILE, W_OK) ? 0 : size_order(self);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ASSERT_GE(self->pagemap_fd, 0);
	self->kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	ASSERT_GE(self->kpageflags_fd, 0);
	self->area_size = 4 * pmd;
	self->area = reserve_area(_metadata, self->area_size);
	self->mem = next_pmd(self->area, pmd);
	/* Not by all that runs: counters are those of the system. */
	enable_orders(1UL << size_order(self), "madvise");
	map_at(_metadata, self->mem, self->size, PROT_READ | PROT_WRITE);
}

FIXTURE_TEARDOWN(cow_zero_page)
{
	if (self->area == MAP_FAILED)
		return;
	munmap(self->area, self->area_size);
	close(self->pagemap_fd);
	close(self->kpageflags_fd);
}

/*
 * What is allocated
 */

TEST_F_TIMEOUT(cow_zero_page, all_read, TIMEOUT)
{
	const long count = counter(size_order(self), "anon_fault_alloc");
	long faults = 0;

	read_zeroes(_metadata, self->mem, 0, self->nr);
	EXPECT_EQ(rss(self->mem), 0);
	expect_write(_metadata, self, K, self->large);
	EXPECT_EQ(counter(size_order(self), "anon_fault_alloc") - count, !!self->large);

	for (size_t i = 0; i < self->nr; i++)
		faults += store_faults(self->mem, i, NEW + i);
	EXPECT_EQ(faults, self->large ? 0 : self->nr - 1);
	EXPECT_EQ(rss(self->mem), self->size);
}

/* Pages that nobody has looked at are zero as well. */
TEST_F_TIMEOUT(cow_zero_page, one_read, TIMEOUT)
{
	read_zeroes(_metadata, self->mem, K, K + 1);
	expect_write(_metadata, self, K, self->large);
}

TEST_F_TIMEOUT(cow_zero_page, half_read, TIMEOUT)
{
	read_zeroes(_metadata, self->mem, 0, self->nr / 2);
	expect_write(_metadata, self, 0, self->large);
}

/* In blocks that are not aligned with what was read. */
TEST_F_TIMEOUT(cow_zero_page, last_page_read, TIMEOUT)
{
	read_zeroes(_metadata, self->mem, self->nr - 1, self->nr);
	expect_write(_metadata, self, self->nr - 1, self->large);
}

TEST_F_TIMEOUT(cow_zero_page, memset, TIMEOUT)
{
	read_zeroes(_metadata, self->mem, 0, self->nr);
	memset(self->mem, 1, self->size);
	EXPECT_EQ(order_from(self, 0), self->large);
	for (size_t i = 0; i < self->size; i++)
		if (self->mem[i] != 1)
			ASSERT_EQ(i, self->size);
	EXPECT_EQ(rss(self->mem), self->size);
}

/* All but what was written read as zeroes, to the last byte. */
TEST_F_TIMEOUT(cow_zero_page, whole_pages_zero, TIMEOUT)
{
	const char *p = self->mem;

	/* Memory that is not zero by chance. */
	memset(self->mem, 0xff, self->size);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	put(self->mem, K, NEW);
	for (size_t i = 0; i < self->size; i++)
		if (p[i] && (i < K * psize() || i >= K * psize() + sizeof(__u64)))
			ASSERT_EQ(i, self->size);
}

TEST_F_TIMEOUT(cow_zero_page, survives_pageout, TIMEOUT)
{
	if (!has_swap())
		SKIP(return, "no swap space");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, self->large);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	/* A single page can be on its way to the LRU on another CPU. */
	if (self->large)
		EXPECT_TRUE(pagemap_get_entry(self->pagemap_fd, self->mem + K * psize()) &
			    PM_SWAP);
	EXPECT_EQ(get(self->mem, K), NEW + K);
	EXPECT_EQ(not_zero(self->mem, 0, K), 0);
	EXPECT_EQ(not_zero(self->mem, K + 1, self->nr), 0);
}

/* The rest of the block was given up, or was never there. */
TEST_F_TIMEOUT(cow_zero_page, dontneed, TIMEOUT)
{
	const char *reason = enter_cgroup();
	char stat[4096];

	if (reason)
		SKIP(return, "%s", reason);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, self->large);
	ASSERT_EQ(madvise(self->mem + K * psize(), psize(), MADV_DONTNEED), 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	EXPECT_EQ(rss(self->mem), 0);
	EXPECT_EQ(count_pages_with(self->pagemap_fd, self->mem, self->nr, self->special,
				   PM_PRESENT), 0);
	expect_write(_metadata, self, K, size_order(self));
	munmap(self->mem, self->size);
	/* The test itself has some pages, but not so many. */
	ASSERT_GT(read_file(CGROUP "/memory.stat", stat, sizeof(stat)), 0);
	EXPECT_LT(strtol(stat + strlen("anon "), NULL, 10), 32 * psize());
	leave_cgroup();
}

/*
 * What is not zero, in the block
 */

/* Have a page of 4K at @page, which no large folio may replace. */
static void put_small(struct __test_metadata *_metadata,
		      struct _test_data_cow_zero_page *self, size_t page)
{
	enable_orders(0, "madvise");
	put(self->mem, page, OLD);
	ASSERT_EQ(order_from(self, page), 0);
	enable_orders(1UL << size_order(self), "madvise");
}

TEST_F_TIMEOUT(cow_zero_page, small_page, TIMEOUT)
{
	unsigned long pfn;

	put_small(_metadata, self, J);
	pfn = pagemap_get_pfn(self->pagemap_fd, self->mem + J * psize());
	read_zeroes(_metadata, self->mem, K, self->nr);
	expect_write(_metadata, self, K, 0);
	EXPECT_EQ(get(self->mem, J), OLD);
	EXPECT_EQ(pagemap_get_pfn(self->pagemap_fd, self->mem + J * psize()), pfn);
}

/* The other half of the block has none, and takes what fits. */
TEST_F_TIMEOUT(cow_zero_page, smaller_size, TIMEOUT)
{
	int order = size_order(self) - 1;

	if (order < 2)
		SKIP(return, "there is no smaller size");
	put_small(_metadata, self, J);
	enable_orders(3UL << order, "madvise");
	read_zeroes(_metadata, self->mem, K, self->nr);
	expect_write(_metadata, self, self->nr / 2 + K, self->large ? order : 0);
	EXPECT_EQ(get(self->mem, J), OLD);
}

TEST_F_TIMEOUT(cow_zero_page, smaller_size_before, TIMEOUT)
{
	int order = size_order(self) - 1;

	if (order < 2)
		SKIP(return, "there is no smaller size");
	put_small(_metadata, self, self->nr - 1);
	enable_orders(3UL << order, "madvise");
	read_zeroes(_metadata, self->mem, 0, self->nr - 1);
	expect_write(_metadata, self, K, self->large ? order : 0);
	EXPECT_EQ(get(self->mem, self->nr - 1), OLD);
}

TEST_F_TIMEOUT(cow_zero_page, guard_page, TIMEOUT)
{
	if (madvise(self->mem + J * psize(), psize(), MADV_GUARD_INSTALL))
		SKIP(return, "no guard regions");
	read_zeroes(_metadata, self->mem, K, self->nr);
	expect_write(_metadata, self, K, 0);
	EXPECT_EQ(try_store(self->mem, J, OTHER), SIGSEGV);
}

TEST_F_TIMEOUT(cow_zero_page, swapped_page, TIMEOUT)
{
	if (!has_swap())
		SKIP(return, "no swap space");
	put_small(_metadata, self, J);
	ASSERT_EQ(madvise(self->mem + J * psize(), psize(), MADV_PAGEOUT), 0);
	read_zeroes(_metadata, self->mem, K, self->nr);
	expect_write(_metadata, self, K, 0);
	EXPECT_EQ(get(self->mem, J), OLD);
}

/*
 * Where the mapping ends
 */

/* Only the part of the block behind its first page is mapped. */
TEST_F_TIMEOUT(cow_zero_page, vma_starts_in_block, TIMEOUT)
{
	ASSERT_EQ(munmap(self->mem, psize()), 0);
	self->mem += psize();
	self->nr--;
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

TEST_F_TIMEOUT(cow_zero_page, vma_ends_in_block, TIMEOUT)
{
	ASSERT_EQ(munmap(self->mem + self->size - psize(), psize()), 0);
	self->nr--;
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

/* The same, but there is another mapping behind. */
TEST_F_TIMEOUT(cow_zero_page, readonly_vma, TIMEOUT)
{
	const size_t half = self->nr / 2;
	char *other = self->mem + half * psize();

	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_EQ(mprotect(other, half * psize(), PROT_READ), 0);
	expect_write(_metadata, self, 0, 0);
	EXPECT_EQ(rss(other), 0);
	expect_segv(_metadata, self->mem, half, self->nr);
	EXPECT_EQ(not_zero(self->mem, half, self->nr), 0);
}

/* Nor may it be what does not lie in a block of the address space. */
TEST_F_TIMEOUT(cow_zero_page, unaligned, TIMEOUT)
{
	char *to = self->mem + self->size + psize();

	read_zeroes(_metadata, self->mem, 0, self->nr);
	move(_metadata, self->mem, self->size, to);
	self->mem = to;
	EXPECT_EQ(store_faults(self->mem, K, NEW), 1);
	EXPECT_EQ(rss(self->mem), psize());
}

/*
 * Who wants to have single pages
 */

TEST_F_TIMEOUT(cow_zero_page, size_disabled, TIMEOUT)
{
	enable_orders(0, "madvise");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

TEST_F_TIMEOUT(cow_zero_page, nohugepage, TIMEOUT)
{
	ASSERT_EQ(madvise(self->mem, self->size, MADV_NOHUGEPAGE), 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

TEST_F_TIMEOUT(cow_zero_page, thp_disable, TIMEOUT)
{
	ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

TEST_F_TIMEOUT(cow_zero_page, policy_never, TIMEOUT)
{
	if (access(POLICY_FILE, W_OK))
		SKIP(return, "no %s", POLICY_FILE);
	write_setting(POLICY_FILE, "never");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	expect_write(_metadata, self, K, 0);
}

TEST_F_TIMEOUT(cow_zero_page, soft_dirty, TIMEOUT)
{
	if (!softdirty_supported())
		SKIP(return, "no soft-dirty tracking");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	clear_softdirty();
	expect_write(_metadata, self, K, 0);
	EXPECT_EQ(count_pages_with(self->pagemap_fd, self->mem, self->nr, self->special,
				   PM_SOFT_DIRTY), 1);
}

/* The kernel writes for somebody who may not: the rest stays as it is. */
TEST_F_TIMEOUT(cow_zero_page, forced_write, TIMEOUT)
{
	int fd = open("/proc/self/mem", O_RDWR);
	__u64 value = OTHER;
	ssize_t ret;

	ASSERT_GE(fd, 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ret = pwrite(fd, &value, sizeof(value), (uintptr_t)self->mem + K * psize());
	close(fd);
	if (ret < 0)
		SKIP(return, "forced writes to /proc/self/mem are not allowed");
	EXPECT_EQ(rss(self->mem), psize());
	EXPECT_EQ(get(self->mem, K), OTHER);
	EXPECT_EQ(not_zero(self->mem, 0, K), 0);
	expect_segv(_metadata, self->mem, 0, self->nr);
}

/* A page is pinned for reading, and what is written there later can be read. */
TEST_F_TIMEOUT(cow_zero_page, unshare, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);

	if (fd < 0)
		SKIP(return, "no gup_test");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_TRUE(pin(fd, self->mem + K * psize(), psize(), 0));
	EXPECT_EQ(rss(self->mem), psize());
	put(self->mem, K, NEW);
	EXPECT_EQ(read_pin(_metadata, fd), NEW);
	ioctl(fd, PIN_LONGTERM_TEST_STOP);
	close(fd);
	EXPECT_EQ(not_zero(self->mem, 0, K), 0);
}

/* Pages that are not there are for the handler, one by one. */
static void *handle_missing(void *arg)
{
	static long handled;
	const int uffd = *(int *)arg;
	struct uffd_msg msg;

	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_zeropage zero = {
			.range = {
				.start = msg.arg.pagefault.address & -(__u64)psize(),
				.len = psize(),
			},
		};

		handled++;
		if (ioctl(uffd, UFFDIO_ZEROPAGE, &zero))
			break;
		if (handled == K + 1)
			return &handled;
	}
	return &handled;
}

TEST_F_TIMEOUT(cow_zero_page, uffd_missing, TIMEOUT)
{
	int uffd = uffd_open(0);
	pthread_t thread;
	void *handled;

	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	read_zeroes(_metadata, self->mem, K + 1, self->nr);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, true, false, false), 0);
	fcntl(uffd, F_SETFL, fcntl(uffd, F_GETFL) & ~O_NONBLOCK);
	expect_write(_metadata, self, K + 1, 0);
	ASSERT_EQ(pthread_create(&thread, NULL, handle_missing, &uffd), 0);
	EXPECT_EQ(not_zero(self->mem, 0, K + 1), 0);
	ASSERT_EQ(pthread_join(thread, &handled), 0);
	EXPECT_EQ(*(long *)handled, K + 1);
	close(uffd);
}

/* Zero pages can be write-protected; others of the block still trap. */
TEST_F_TIMEOUT(cow_zero_page, uffd_wp_async, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED);

	if (uffd < 0)
		SKIP(return, "no userfaultfd-wp");
	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, false, true, false), 0);
	ASSERT_EQ(uffd_protect(uffd, self->mem, self->size, true), 0);
	expect_write(_metadata, self, K, 0);
	EXPECT_EQ(count_pages_with(self->pagemap_fd, self->mem, self->nr, self->special,
				   PM_UFFD_WP), self->nr - 1);
	close(uffd);
}

/*
 * Who writes
 */

TEST_F_TIMEOUT(cow_zero_page, child_writes, TIMEOUT)
{
	struct child child;

	read_zeroes(_metadata, self->mem, 0, self->nr);
	if (!child_fork(_metadata, &child)) {
		put(self->mem, K, CHILD);
		child_pause(&child);
		_exit(get(self->mem, K) != CHILD || not_zero(self->mem, 0, K));
	}
	child_started(_metadata, &child);
	EXPECT_EQ(not_zero(self->mem, 0, self->nr), 0);
	expect_write(_metadata, self, K, self->large);
	child_finish(_metadata, &child);
}

/* An anon_vma is there before the write, or is not. */
TEST_F_TIMEOUT(cow_zero_page, parent_writes, TIMEOUT)
{
	struct child child;
	char *next = self->mem + self->size;

	map_at(_metadata, next, psize(), PROT_READ | PROT_WRITE);
	put(next, 0, OLD);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	if (!child_fork(_metadata, &child)) {
		child_pause(&child);
		_exit(not_zero(self->mem, 0, self->nr) || get(next, 0) != OLD);
	}
	child_started(_metadata, &child);
	put(self->mem, K, NEW);
	EXPECT_EQ(order_from(self, self->large ? 0 : K), self->large);
	EXPECT_EQ(not_zero(self->mem, 0, K), 0);
	child_finish(_metadata, &child);
}

TEST_F_TIMEOUT(cow_zero_page, other_process_writes, TIMEOUT)
{
	pid_t pid;

	read_zeroes(_metadata, self->mem, 0, self->nr);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(!write_to_process(getppid(), self->mem + K * psize(), OTHER));
	expect_exit(_metadata, pid);
	EXPECT_EQ(get(self->mem, K), OTHER);
	EXPECT_EQ(order_from(self, self->large ? 0 : K), self->large);
	EXPECT_EQ(rss(self->mem), psize() << self->large);
}

/*
 * KSM maps the zero page, too
 */

/* Have KSM map its zero page where pages are zero. */
static bool merge_zero_pages(char *mem, size_t size)
{
	bool merged;

	write_setting(KSM_ZERO_FILE, "1");
	merged = !madvise(mem, size, MADV_MERGEABLE) && !ksm_start() && !ksm_start();
	/* Nothing more from now on. */
	write_setting(KSM_RUN_FILE, "0");
	return merged;
}

/* In a file mapping, a PTE that is none stands for the content of the file. */
TEST_F_TIMEOUT(cow_zero_page, private_file, TIMEOUT)
{
	int fd = memfd_create("cow_zero_page", 0);
	char *map;

	if (access(KSM_RUN_FILE, W_OK))
		SKIP(return, "no KSM");
	ASSERT_GE(fd, 0);
	for (size_t i = 0; i < self->nr; i++) {
		__u64 value = OLD + i;

		ASSERT_EQ(pwrite(fd, &value, sizeof(value), i * psize()), sizeof(value));
	}
	ASSERT_EQ(ftruncate(fd, self->size), 0);
	map = mmap(self->mem, self->size, PROT_READ | PROT_WRITE,
		   MAP_FIXED | MAP_PRIVATE, fd, 0);
	ASSERT_EQ(map, self->mem);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_HUGEPAGE), 0);
	/* Zeroes of our own, then one page of the file back. */
	memset(self->mem, 0, self->size);
	ASSERT_TRUE(merge_zero_pages(self->mem, self->size));
	ASSERT_EQ(ksm_get_self_zero_pages(), self->nr);
	EXPECT_EQ(rss(self->mem), 0);
	ASSERT_EQ(madvise(self->mem + J * psize(), psize(), MADV_DONTNEED), 0);

	put(self->mem, K, NEW);
	EXPECT_EQ(rss(self->mem), psize());
	EXPECT_EQ(get(self->mem, K), NEW);
	EXPECT_EQ(get(self->mem, J), OLD + J);
	EXPECT_EQ(get(self->mem, 0), 0);
	EXPECT_EQ(not_zero(self->mem, K + 1, self->nr), 0);
	ksm_stop();
	close(fd);
}

/* In an anonymous one, each zero page that goes is counted. */
TEST_F_TIMEOUT(cow_zero_page, ksm_zero_pages, TIMEOUT)
{
	if (access(KSM_RUN_FILE, W_OK))
		SKIP(return, "no KSM");
	/* Large folios are not merged. */
	enable_orders(0, "madvise");
	memset(self->mem, 0, self->size);
	enable_orders(1UL << size_order(self), "madvise");
	ASSERT_TRUE(merge_zero_pages(self->mem, self->size));
	ASSERT_EQ(ksm_get_self_zero_pages(), self->nr);
	/* One that is none, and one that was never KSM's. */
	ASSERT_EQ(madvise(self->mem, 2 * psize(), MADV_DONTNEED), 0);
	ASSERT_EQ(ksm_get_self_zero_pages(), self->nr - 2);
	read_zeroes(_metadata, self->mem, 0, 1);

	expect_write(_metadata, self, K, self->large);
	EXPECT_EQ(ksm_get_self_zero_pages(), self->large ? 0 : self->nr - 3);
	ksm_stop();
}

/*
 * Failures
 */

/* Nobody is killed for a folio that does not fit if a page does. */
TEST_F_TIMEOUT(cow_zero_page, memcg_limit, TIMEOUT)
{
	const char *reason = enter_cgroup();

	if (reason)
		SKIP(return, "%s", reason);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	/* The first one also takes an anon_vma. */
	ASSERT_EQ(madvise(self->mem, self->size, MADV_NOHUGEPAGE), 0);
	put(self->mem, J, NEW);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_HUGEPAGE), 0);
	read_zeroes(_metadata, self->mem, 0, self->nr);
	ASSERT_TRUE(try_leave_room(self->nr - 1));
	put(self->mem, K, NEW);
	write_setting(CGROUP "/memory.max", "max");
	EXPECT_EQ(rss(self->mem), psize());
	EXPECT_EQ(get(self->mem, K), NEW);
	leave_cgroup();
}

TEST_F_TIMEOUT(cow_zero_page, alloc_fails, TIMEOUT)
{
	const long count = counter(size_order(self), "anon_fault_fallback");

	read_zeroes(_metadata, self->mem, 0, self->nr);
	/* Those that may wait for memory, too. */
	try_set(FAIL_DIR "ignore-gfp-wait", "N");
	if (!fail_allocations(1))
		SKIP(return, "no fault injection for page allocation");
	put(self->mem, K, NEW);
	fail_no_allocations();
	EXPECT_EQ(counter(size_order(self), "anon_fault_fallback") - count, !!self->large);
	EXPECT_EQ(rss(self->mem), psize());
	EXPECT_EQ(get(self->mem, K), NEW);
	EXPECT_EQ(not_zero(self->mem, 0, K), 0);
}

/*
 * One allocation after the other fails, of all that the fault makes: for the folio,
 * the anon_vma of the mapping, and so on.
 */
TEST_F_TIMEOUT(cow_zero_page, each_alloc_fails, TIMEOUT)
{
	bool failed = true;
	int fd, nth;

	if (!may_fail_each())
		SKIP(return, "no fault injection for page allocation");
	for (nth = 0; failed && nth < MAX_ALLOCATIONS; nth++) {
		map_at(_metadata, self->mem, self->size, PROT_READ | PROT_WRITE);
		read_zeroes(_metadata, self->mem, 0, self->nr);
		fd = fail_nth(nth + 1);
		put(self->mem, K, NEW + K);
		failed = has_failed(fd);
		EXPECT_EQ(get(self->mem, K), NEW + K);
		EXPECT_EQ(not_zero(self->mem, 0, K), 0);
		EXPECT_EQ(not_zero(self->mem, K + 1, self->nr), 0);
		if (rss(self->mem) != psize())
			EXPECT_EQ(rss(self->mem), self->size);
	}
	EXPECT_FALSE(failed);
	EXPECT_GT(nth, 1);
	/* Now that nothing failed. */
	EXPECT_EQ(order_from(self, self->large ? 0 : K), self->large);
}

/*
 * Races
 */

struct racer {
	char *mem;
	size_t size;
	bool stop;
	size_t bad;
};

/* Pages are zero, or hold what is written there; a page that is given up is zero. */
static void *read_and_drop(void *arg)
{
	struct racer *racer = arg;
	const size_t nr = racer->size / psize();

	while (!__atomic_load_n(&racer->stop, __ATOMIC_RELAXED)) {
		for (size_t i = 0; i < nr; i++) {
			__u64 value = get(racer->mem, i);

			racer->bad += value && value != NEW + i;
		}
		racer->bad += madvise(racer->mem, racer->size, MADV_DONTNEED) != 0;
	}
	return NULL;
}

TEST_F_TIMEOUT(cow_zero_page, race_with_dontneed, TIMEOUT)
{
	struct racer racer = { .mem = self->mem, .size = self->size };
	time_t end = time(NULL) + RACE_SECONDS;
	pthread_t thread;

	ASSERT_EQ(pthread_create(&thread, NULL, read_and_drop, &racer), 0);
	while (time(NULL) <= end)
		for (size_t i = 0; i < self->nr; i++)
			put(self->mem, shuffled_page(i, self->nr),
			    NEW + shuffled_page(i, self->nr));
	__atomic_store_n(&racer.stop, true, __ATOMIC_RELAXED);
	ASSERT_EQ(pthread_join(thread, NULL), 0);
	EXPECT_EQ(racer.bad, 0);
	EXPECT_LE(rss(self->mem), (long)self->size);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	EXPECT_EQ(rss(self->mem), 0);
}

struct writer {
	char *mem;
	size_t first;
	size_t nr;
	pthread_barrier_t *barrier;
	bool *stop;
};

static void *write_every_other(void *arg)
{
	struct writer *writer = arg;

	for (;;) {
		pthread_barrier_wait(writer->barrier);
		if (*writer->stop)
			return NULL;
		for (size_t i = writer->first; i < writer->nr; i += 2)
			put(writer->mem, i, NEW + i);
		pthread_barrier_wait(writer->barrier);
	}
}

/* Two threads fault in one block: no store gets lost. */
TEST_F_TIMEOUT(cow_zero_page, race_two_threads, TIMEOUT)
{
	time_t end = time(NULL) + RACE_SECONDS;
	pthread_barrier_t barrier;
	bool stop = false;
	struct writer writers[] = {
		{ self->mem, 0, self->nr, &barrier, &stop },
		{ self->mem, 1, self->nr, &barrier, &stop },
	};
	pthread_t threads[2];
	size_t bad = 0;

	ASSERT_EQ(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, write_every_other,
					 &writers[i]), 0);
	do {
		ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
		read_zeroes(_metadata, self->mem, 0, self->nr);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		for (size_t i = 0; i < self->nr; i++)
			bad += get(self->mem, i) != NEW + i;
	} while (time(NULL) <= end);
	stop = true;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
	EXPECT_EQ(bad, 0);
	EXPECT_EQ(rss(self->mem), self->size);
}

int main(int argc, char **argv)
{
	/* Here, so that they are restored even if a test is killed. */
	if (!geteuid()) {
		thp_save_settings();
		save_settings(settings, ARRAY_SIZE(settings));
		atexit(restore);
		if (thp_available())
			stop_khugepaged(1UL << 2);
	}
	return test_harness_run(argc, argv);
}
