// SPDX-License-Identifier: GPL-2.0
/*
 * Write faults on PTE-mapped large folios that fork() shared and that somebody
 * else still maps.
 *
 * Such a fault may copy an aligned block of pages into a new large folio instead
 * of a single page. Tests keep a model of what is copied by now, and compare it
 * with the folios that are mapped. Without the debugfs file that selects the
 * policy, the model is that a fault copies one page, as older kernels do: tests
 * of correctness run there as well, those of the policy do not.
 *
 * Where a test is not about the policy, it has each fault copy the largest block
 * that there can be. So nothing but the rule that is tested keeps a page from
 * being copied.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
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
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "cow_util.h"

#define KSM_RUN_FILE	"/sys/kernel/mm/ksm/run"
#define POLICY_FILE	"/sys/kernel/debug/cow/copy"
#define MAX_BYTES_FILE	"/sys/kernel/debug/cow/copy_max_bytes"

#define KPF_UNEVICTABLE	BIT_ULL(18)
#define KPF_KSM		BIT_ULL(21)

/*
 * Orders of the smallest and of the largest block that a fault copies. The
 * largest one is 64K where pages are 4K; tests set it to so many pages.
 */
#define MIN_ORDER	2
#define MAX_ORDER	4
#define BLOCK		16UL
#define ORDERS		((2UL << MAX_ORDER) - (1UL << MIN_ORDER))

/* With base pages of 4K, so many fill a page table. */
#define TABLE		512UL
#define MAX_PAGES	(2 * TABLE)

/* What is mapped, if not a folio of some order that the page was copied into. */
#define SHARED		(-1)	/* the page of before, still to be copied */
#define OWN		(-2)	/* the page of before, which needs no copy */

FIXTURE(cow_copy)
{
	char *area;		/* address space that is reserved for the test */
	size_t area_size;
	char *base;		/* first PMD boundary inside */
	char *mem;		/* where folios are mapped, and their pages */
	size_t nr;
	size_t folio_nr;	/* pages of one folio, from @mem on */
	size_t size;
	size_t pmd;
	size_t k;		/* the page to store to, and two near to it */
	size_t j;
	size_t r;
	unsigned long orders;	/* of blocks that a fault may copy now */
	bool not_advised;	/* have mappings without MADV_HUGEPAGE */
	bool special[MAX_PAGES];	/* pages that are no part of the model */
	int model[MAX_PAGES];	/* what is mapped: an order, SHARED or OWN */
	unsigned long pfns[MAX_PAGES];	/* of pages that are SHARED or OWN */
	int pagemap_fd;
	int kpageflags_fd;
};

FIXTURE_VARIANT(cow_copy)
{
	size_t size;
};

FIXTURE_VARIANT_ADD(cow_copy, 16K) { .size = 16 << 10, };
FIXTURE_VARIANT_ADD(cow_copy, 64K) { .size = 64 << 10, };
FIXTURE_VARIANT_ADD(cow_copy, 1M) { .size = 1 << 20, };
FIXTURE_VARIANT_ADD(cow_copy, 2M) { .size = 2 << 20, };

/* Files with settings of the whole system, restored in the end. */
static struct setting settings[] = {
	{ POLICY_FILE },
	{ MAX_BYTES_FILE },
	{ KSM_RUN_FILE },
};

/* The policy: what a fault on a shared folio copies. */

static bool has_policy(void)
{
	return !access(POLICY_FILE, W_OK);
}

static void set_policy(const char *policy)
{
	if (has_policy())
		write_setting(POLICY_FILE, policy);
}

static void set_max_order(int order)
{
	char bytes[32];

	if (!has_policy())
		return;
	snprintf(bytes, sizeof(bytes), "%lu", (unsigned long)psize() << order);
	write_setting(MAX_BYTES_FILE, bytes);
}

/* Tell the model that blocks of @orders may be copied, if there are any. */
static void allow_orders(struct _test_data_cow_copy *self, unsigned long orders)
{
	self->orders = has_policy() ? orders : 0;
}

/*
 * In the mappings of the test only: the counters are those of the system, and other
 * processes, or data of this one, may have large folios as well.
 */
static void enable_copies(struct _test_data_cow_copy *self, unsigned long orders)
{
	enable_orders(orders, "madvise");
	allow_orders(self, orders);
}

struct counts {
	long alloc[MAX_ORDER + 1];
	long fallback[MAX_ORDER + 1];
	long charge[MAX_ORDER + 1];
};

static bool has_counters(void)
{
	return counter(MIN_ORDER, "anon_cow_alloc") >= 0;
}

static void read_counts(struct counts *counts)
{
	for (int i = MIN_ORDER; i <= MAX_ORDER; i++) {
		counts->alloc[i] = counter(i, "anon_cow_alloc");
		counts->fallback[i] = counter(i, "anon_cow_fallback");
		counts->charge[i] = counter(i, "anon_cow_fallback_charge");
	}
}

/* Number of pages in [from, to), other than special ones, that hold something else. */
static size_t mismatches(struct _test_data_cow_copy *self, size_t from, size_t to,
			 __u64 base)
{
	return count_mismatches(self->mem, self->special, from, to, base);
}

/* Page tables and folios */

static __u64 pagemap(struct _test_data_cow_copy *self, size_t page)
{
	return pagemap_get_entry(self->pagemap_fd, self->mem + page * psize());
}

static unsigned long pfn_of(struct _test_data_cow_copy *self, size_t page)
{
	return pagemap_get_pfn(self->pagemap_fd, self->mem + page * psize());
}

/* Number of pages, other than special ones, that have @flag. */
static size_t pages_with(struct _test_data_cow_copy *self, __u64 flag)
{
	return count_pages_with(self->pagemap_fd, self->mem, self->nr, self->special,
				flag);
}

static int folio_order_from(struct _test_data_cow_copy *self, size_t page)
{
	return mapped_order(self->pagemap_fd, self->kpageflags_fd, self->mem, page,
			    self->nr);
}

/* The model: what is mapped now is what has to be copied. */
static void remember(struct _test_data_cow_copy *self)
{
	for (size_t i = 0; i < self->nr; i++) {
		self->model[i] = SHARED;
		self->pfns[i] = pfn_of(self, i);
	}
}

/* May @nr pages from @first on, all shared ones of one folio, be copied as one? */
static bool block_shared(struct _test_data_cow_copy *self, size_t first, size_t nr)
{
	if (first / self->folio_nr != (first + nr - 1) / self->folio_nr)
		return false;
	for (size_t i = first; i < first + nr; i++)
		if (i >= self->nr || self->special[i] || self->model[i] != SHARED)
			return false;
	return true;
}

/* Pages between the one at @page and the start of the aligned block of @order. */
static size_t block_offset(struct _test_data_cow_copy *self, size_t page, int order)
{
	return ((uintptr_t)self->mem / psize() + page) & ((1UL << order) - 1);
}

/* The order of the largest block around @page, 0 if it is copied alone. */
static int block_order(struct _test_data_cow_copy *self, size_t page)
{
	size_t before;

	for (int order = NR_ORDERS - 1; order >= MIN_ORDER; order--) {
		before = block_offset(self, page, order);
		if (self->orders & (1UL << order) && before <= page &&
		    block_shared(self, page - before, 1UL << order))
			return order;
	}
	return 0;
}

static void model_copy(struct _test_data_cow_copy *self, size_t page, int order)
{
	size_t first = page - block_offset(self, page, order);

	for (size_t i = first; i < first + (1UL << order); i++)
		self->model[i] = order;
}

/* A store to @page that is known to copy the largest block. */
static void model_store(struct _test_data_cow_copy *self, size_t page)
{
	if (self->model[page] == SHARED)
		model_copy(self, page, block_order(self, page));
}

/* Number of pages that are not mapped as the model says; the first of them. */
static size_t differences(struct _test_data_cow_copy *self, size_t *first)
{
	size_t bad = 0, nr;

	for (size_t i = 0; i < self->nr; i += nr) {
		int want = self->model[i];
		bool good;

		nr = want > 0 ? 1UL << want : 1;
		if (self->special[i])
			continue;
		if (want < 0)
			good = pfn_of(self, i) == self->pfns[i];
		else
			good = pfn_of(self, i) != self->pfns[i] &&
			       folio_order_from(self, i) == want;
		if (!good && !bad++)
			*first = i;
	}
	return bad;
}

static void expect_model(struct __test_metadata *_metadata,
			 struct _test_data_cow_copy *self)
{
	size_t first = 0;

	EXPECT_EQ(differences(self, &first), 0)
		TH_LOG("page %zu: want order %d (-1: the old folio), has order %d%s",
		       first, self->model[first], folio_order_from(self, first),
		       pfn_of(self, first) == self->pfns[first] ? ", the old folio" : "");
}

static void store(struct _test_data_cow_copy *self, size_t page, __u64 base)
{
	put(self->mem, page, base + page);
	model_store(self, page);
}

static void store_ascending(struct _test_data_cow_copy *self, __u64 base)
{
	for (size_t i = 0; i < self->nr; i++)
		if (!self->special[i])
			store(self, i, base);
}

static void store_descending(struct _test_data_cow_copy *self, __u64 base)
{
	for (size_t i = self->nr; i-- > 0;)
		if (!self->special[i])
			store(self, i, base);
}

static void store_shuffled(struct _test_data_cow_copy *self, __u64 base)
{
	for (size_t i = 0; i < self->nr; i++)
		if (!self->special[shuffled_page(i, self->nr)])
			store(self, shuffled_page(i, self->nr), base);
}

/*
 * Store to each page in [from, to) but special ones, and expect a fault where the
 * model says that the page is shared. One page a fault, so that one store does
 * not spoil the next result.
 */
static void expect_faults(struct __test_metadata *_metadata,
			  struct _test_data_cow_copy *self)
{
	size_t bad = 0, first = 0;

	set_policy("never");
	for (size_t i = 0; i < self->nr; i++) {
		long want = self->model[i] == SHARED;

		if (self->special[i])
			continue;
		if (store_faults(self->mem, i, NEW + i) != want && !bad++)
			first = i;
	}
	set_policy("always");
	EXPECT_EQ(bad, 0)
		TH_LOG("page %zu should have taken %d faults", first,
		       self->model[first] == SHARED);
}

/* Populate @size bytes at @mem with one folio of that size, mapped by PTEs. */
static void fault_in(char *mem, size_t size)
{
	put(mem, 0, 0);
	if (!map_by_ptes(mem, size))
		ksft_exit_fail_perror("mprotect");
}

static void alloc_folios(struct __test_metadata *_metadata,
			 struct _test_data_cow_copy *self, char *mem, size_t nr)
{
	size_t size = nr * self->size;
	char *map;

	enable_orders(1UL << sz2ord(self->size, psize()), "always");
	map = mmap(mem, size, PROT_READ | PROT_WRITE,
		   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_EQ(map, mem);
	for (size_t i = 0; i < size; i += self->size)
		fault_in(mem + i, self->size);
	ASSERT_EQ(smaps_bytes(mem, "AnonHugePages:"), 0);
	ASSERT_EQ(smaps_bytes(mem, "Rss:"), size);
	if (!self->not_advised)
		ASSERT_EQ(madvise(mem, size, MADV_HUGEPAGE), 0);
	enable_copies(self, ORDERS);
}

/* Have @nr folios from @mem on instead of the one of the fixture. */
static void map_folios(struct __test_metadata *_metadata,
		       struct _test_data_cow_copy *self, char *mem, size_t nr)
{
	alloc_folios(_metadata, self, mem, nr);
	self->mem = mem;
	self->nr = nr * self->folio_nr;
	ASSERT_LE(self->nr, MAX_PAGES);
	for (size_t i = 0; i < self->nr; i += self->folio_nr)
		ASSERT_EQ(folio_order_from(self, i), sz2ord(self->size, psize()))
			TH_LOG("got no folio of %zu bytes", self->size);
	fill(self->mem, 0, self->nr, OLD);
}

/* Children */

typedef int (*child_fn)(struct _test_data_cow_copy *self);

static int nothing(struct _test_data_cow_copy *self)
{
	return 0;
}

static int has_old(struct _test_data_cow_copy *self)
{
	return !!mismatches(self, 0, self->nr, OLD);
}

static int follow_model(struct _test_data_cow_copy *self)
{
	size_t first;

	return !!differences(self, &first);
}

static int store_k(struct _test_data_cow_copy *self)
{
	store(self, self->k, CHILD);
	return follow_model(self);
}

static int store_all(struct _test_data_cow_copy *self)
{
	store_ascending(self, CHILD);
	return follow_model(self) || mismatches(self, 0, self->nr, CHILD);
}

static void reopen_pagemap(struct _test_data_cow_copy *self)
{
	close(self->pagemap_fd);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
}

static void child_main(struct _test_data_cow_copy *self, const struct child *child,
		       child_fn before, child_fn after)
{
	reopen_pagemap(self);
	if (before(self))
		_exit(1);
	child_pause(child);
	_exit(after(self) ? 4 : 0);
}

/*
 * Fork a child that runs @before now and @after when it is told to finish. All
 * pages are shared from now on.
 */
static void child_start(struct __test_metadata *_metadata,
			struct _test_data_cow_copy *self, struct child *child,
			child_fn before, child_fn after)
{
	remember(self);
	if (!child_fork(_metadata, child))
		child_main(self, child, before, after);
	child_started(_metadata, child);
}

/* Number of pages that hold neither what was there at fork() nor what was stored. */
static size_t garbled(struct _test_data_cow_copy *self)
{
	size_t bad = 0;

	for (size_t i = 0; i < self->nr; i++) {
		__u64 value;

		if (self->special[i])
			continue;
		value = get(self->mem, i);
		bad += value != OLD + i && value != NEW + i && value != OTHER;
	}
	return bad;
}

/*
 * Expect that so far was copied what the model says, with its content; and that
 * the rest of the stores stays out of the child, too, which looks for them in the
 * end.
 */
static void expect_copies(struct __test_metadata *_metadata,
			  struct _test_data_cow_copy *self, struct child *child)
{
	expect_model(_metadata, self);
	EXPECT_EQ(garbled(self), 0);
	store_ascending(self, NEW);
	expect_model(_metadata, self);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	child_finish(_metadata, child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

static const char *unsupported(size_t size)
{
	const char *reason = unsupported_size(size);

	if (!reason && !has_policy() && has_counters())
		return "cannot test without " POLICY_FILE;
	return reason;
}

static void choose_pages(struct _test_data_cow_copy *self, size_t size)
{
	self->size = size;
	self->folio_nr = size / psize();
	self->j = self->folio_nr / 2;
	self->k = self->j + 1;
	self->r = self->folio_nr > 4 ? self->k + 2 : 0;
}

static void choose_addresses(struct __test_metadata *_metadata,
			     struct _test_data_cow_copy *self)
{
	self->pmd = read_pmd_pagesize();
	ASSERT_NE(self->pmd, 0);
	self->area_size = 8 * self->pmd;
	self->area = reserve_area(_metadata, self->area_size);
	self->base = next_pmd(self->area, self->pmd);
}

FIXTURE_SETUP(cow_copy)
{
	const char *reason = unsupported(variant->size);

	self->area = MAP_FAILED;
	if (reason)
		SKIP(return, "%s", reason);
	choose_pages(self, variant->size);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ASSERT_GE(self->pagemap_fd, 0);
	self->kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	ASSERT_GE(self->kpageflags_fd, 0);

	choose_addresses(_metadata, self);
	set_max_order(MAX_ORDER);
	set_policy("always");
	map_folios(_metadata, self, self->base + self->pmd, 1);
}

FIXTURE_TEARDOWN(cow_copy)
{
	if (self->area == MAP_FAILED)
		return;
	munmap(self->area, self->area_size);
	close(self->pagemap_fd);
	close(self->kpageflags_fd);
}

/*
 * Who stores first
 */

TEST_F_TIMEOUT(cow_copy, parent_stores, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, child_stores, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, store_k, store_all);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	expect_model(_metadata, self);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
}

/* A child with a child of its own: three address spaces share the folio. */
static int grandchild_stores(struct _test_data_cow_copy *self)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return 1;
	if (!pid) {
		reopen_pagemap(self);
		store_descending(self, GRANDCHILD);
		_exit(follow_model(self) ||
		      mismatches(self, 0, self->nr, GRANDCHILD));
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return 2;
	return has_old(self);
}

TEST_F_TIMEOUT(cow_copy, grandchild_stores_first, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, grandchild_stores, store_all);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
}

TEST_F_TIMEOUT(cow_copy, grandchild_stores_last, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, grandchild_stores);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/* The order of the stores does not matter. */
TEST_F_TIMEOUT(cow_copy, stores_descending, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store_descending(self, NEW);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, stores_shuffled, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store_shuffled(self, NEW);
	expect_copies(_metadata, self, &child);
}

/* The other words of a page are copied as well, those of the last page too. */
TEST_F_TIMEOUT(cow_copy, whole_pages, TIMEOUT)
{
	size_t words = self->size / sizeof(__u64);
	__u64 *mem = (__u64 *)self->mem;
	struct child child;
	size_t bad = 0;

	for (size_t i = 0; i < words; i++)
		mem[i] = OTHER + i;
	child_start(_metadata, self, &child, nothing, nothing);
	mem[self->k * psize() / sizeof(__u64)]++;
	for (size_t i = 0; i < words; i++)
		bad += mem[i] != OTHER + i + (i == self->k * psize() / sizeof(__u64));
	EXPECT_EQ(bad, 0);
	model_store(self, self->k);
	expect_model(_metadata, self);
	child_finish(_metadata, &child);
}

/* The new folio is shared in turn, and copied like the one before. */
TEST_F_TIMEOUT(cow_copy, copy_of_copy, TIMEOUT)
{
	struct child first, second;

	child_start(_metadata, self, &first, nothing, has_old);
	store_ascending(self, OLD);
	expect_model(_metadata, self);
	child_start(_metadata, self, &second, nothing, has_old);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &second);
	child_finish(_metadata, &first);
}

/* Two children have the same folio. */
TEST_F_TIMEOUT(cow_copy, two_children, TIMEOUT)
{
	struct child first, second;

	child_start(_metadata, self, &first, nothing, store_all);
	child_start(_metadata, self, &second, nothing, has_old);
	store(self, self->k, NEW);
	child_finish(_metadata, &first);
	expect_copies(_metadata, self, &second);
}

/* The child has given up a part of the folio. */
static int unmap_half(struct _test_data_cow_copy *self)
{
	self->nr /= 2;
	return munmap(self->mem + self->nr * psize(), self->nr * psize());
}

TEST_F_TIMEOUT(cow_copy, child_unmaps_half, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, unmap_half, has_old);
	store(self, self->k, NEW);
	store(self, 0, NEW);
	expect_copies(_metadata, self, &child);
}

/*
 * What a copy leaves behind
 */

/* The whole block is writable: the other pages take no faults. */
TEST_F_TIMEOUT(cow_copy, block_is_writable, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	EXPECT_EQ(store_faults(self->mem, self->k, NEW + self->k), 1);
	model_store(self, self->k);
	expect_model(_metadata, self);
	expect_faults(_metadata, self);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	child_finish(_metadata, &child);
}

/*
 * mprotect() maps exclusive pages writable without a fault: so it shows that
 * all pages of the block, and no others, are exclusive.
 */
TEST_F_TIMEOUT(cow_copy, block_is_exclusive, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	expect_faults(_metadata, self);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	child_finish(_metadata, &child);
}

/* The block has the protection of its VMA. */
TEST_F_TIMEOUT(cow_copy, block_becomes_readonly, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, OLD);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	expect_segv(_metadata, self->mem, 0, self->nr);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	child_finish(_metadata, &child);
}

static int store_in_place(struct _test_data_cow_copy *self)
{
	fill(self->mem, 0, self->nr, CHILD);
	/* Nothing was copied. */
	return follow_model(self) || mismatches(self, 0, self->nr, CHILD);
}

/*
 * Mappings and references of the old folio are dropped, as many as there were:
 * it is the child's now, who needs no copies.
 */
TEST_F_TIMEOUT(cow_copy, child_keeps_old_folio, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, store_in_place);
	store_ascending(self, NEW);
	expect_copies(_metadata, self, &child);
}

/* A copy replaces what it is a copy of. */
TEST_F_TIMEOUT(cow_copy, rss_unchanged, TIMEOUT)
{
	struct child child;
	long before, after;

	child_start(_metadata, self, &child, nothing, has_old);
	before = rss_anon();
	before = rss_anon();
	store_ascending(self, NEW);
	after = rss_anon();
	EXPECT_EQ(before, after);
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), self->size);
	EXPECT_EQ(pages_with(self, PM_MMAP_EXCLUSIVE), self->nr);
	child_finish(_metadata, &child);
}

/* The block can be reclaimed, and pages of it that nobody has stored to are not lost. */
TEST_F_TIMEOUT(cow_copy, block_survives_pageout, TIMEOUT)
{
	struct child child;

	if (!has_swap())
		SKIP(return, "no swap space");
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, OLD);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	/* A single page can be on its way to the LRU on another CPU. */
	if (self->model[self->k] > 0)
		EXPECT_TRUE(pagemap(self, self->k) & PM_SWAP);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	child_finish(_metadata, &child);
}

/*
 * Pages that are not shared
 */

static int first_half_has_old(struct _test_data_cow_copy *self)
{
	return !!mismatches(self, 0, self->nr / 2, OLD);
}

static void model_own(struct _test_data_cow_copy *self, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		self->model[i] = OWN;
}

/* Only a half was ever shared: the other one has stayed writable. */
TEST_F_TIMEOUT(cow_copy, half_is_own, TIMEOUT)
{
	size_t half = self->nr / 2;
	char *rest = self->mem + half * psize();
	struct child child;

	ASSERT_EQ(madvise(rest, self->size / 2, MADV_DONTFORK), 0);
	child_start(_metadata, self, &child, nothing, first_half_has_old);
	ASSERT_EQ(madvise(rest, self->size / 2, MADV_DOFORK), 0);
	model_own(self, half, self->nr);
	store(self, half - 1, NEW);
	expect_copies(_metadata, self, &child);
}

/*
 * All pages of a folio of which one is pinned stay with the parent, if they were
 * exclusive to it before. The child has got copies.
 */
TEST_F_TIMEOUT(cow_copy, pinned_folio, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	ASSERT_TRUE(pin(fd, self->mem + self->j * psize(), psize(),
			PIN_LONGTERM_TEST_FLAG_USE_WRITE));
	child_start(_metadata, self, &child, nothing, has_old);
	model_own(self, 0, self->nr);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->j);
	close(fd);
}

/*
 * A read-only pin makes a single page exclusive, which stays with the parent, and
 * the others are shared. As long as it lasts, they are copied one by one.
 */
TEST_F_TIMEOUT(cow_copy, pinned_page, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	share_once(_metadata);
	ASSERT_TRUE(pin(fd, self->mem + self->j * psize(), psize(), 0));
	child_start(_metadata, self, &child, nothing, has_old);
	model_own(self, self->j, self->j + 1);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->j);
	close(fd);
}

/*
 * The same when the pin is gone: the page is exclusive and not writable, and
 * blocks that it is in are not copied.
 */
TEST_F_TIMEOUT(cow_copy, exclusive_page, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	share_once(_metadata);
	ASSERT_TRUE(pin(fd, self->mem + self->j * psize(), psize(), 0));
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(ioctl(fd, PIN_LONGTERM_TEST_STOP), 0);
	model_own(self, self->j, self->j + 1);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	close(fd);
}

/* A read-only pin of a shared page gets a copy of that page, and no other. */
TEST_F_TIMEOUT(cow_copy, unshare, TIMEOUT)
{
	int fd = open(GUP_TEST_FILE, O_RDWR);
	struct child child;

	if (fd < 0)
		SKIP(return, "no gup_test");
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_TRUE(pin(fd, self->mem + self->k * psize(), psize(), 0));
	model_copy(self, self->k, 0);
	expect_model(_metadata, self);
	/* It is not writable by that. */
	EXPECT_EQ(store_faults(self->mem, self->k, NEW + self->k), 1);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->k);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(read_pin(_metadata, fd), NEW + self->k);
	close(fd);
}

/* References without a mapping: somebody may be reading or writing a page. */
static int splice_j(struct _test_data_cow_copy *self, int fd)
{
	struct iovec iov = { self->mem + self->j * psize(), psize() };

	return vmsplice(fd, &iov, 1, 0) != (ssize_t)psize();
}

static void expect_spliced_j(struct __test_metadata *_metadata,
			     struct _test_data_cow_copy *self, int fd)
{
	__u64 page[psize() / sizeof(__u64)];

	ASSERT_EQ(read(fd, page, psize()), psize());
	EXPECT_EQ(page[0], OLD + self->j);
}

TEST_F_TIMEOUT(cow_copy, referenced_page, TIMEOUT)
{
	struct child child;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(splice_j(self, fds[1]), 0);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	store_ascending(self, NEW);
	expect_spliced_j(_metadata, self, fds[0]);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, referenced_by_exited_child, TIMEOUT)
{
	struct child child;
	int fds[2];
	pid_t pid;

	ASSERT_EQ(pipe(fds), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		_exit(splice_j(self, fds[1]));
	expect_exit(_metadata, pid);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	store_ascending(self, NEW);
	expect_spliced_j(_metadata, self, fds[0]);
	expect_copies(_metadata, self, &child);
}

/* When the reference is gone, blocks are copied again. */
TEST_F_TIMEOUT(cow_copy, referenced_before, TIMEOUT)
{
	struct child child;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(splice_j(self, fds[1]), 0);
	expect_spliced_j(_metadata, self, fds[0]);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/*
 * VMAs
 */

/* The block ends with the VMA, on either side. */
TEST_F_TIMEOUT(cow_copy, other_vma_right, TIMEOUT)
{
	size_t split = self->nr - 1;
	struct child child;

	ASSERT_EQ(madvise(self->mem + split * psize(), psize(), MADV_DONTDUMP), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	self->special[split] = true;
	store(self, split - 1, NEW);
	expect_model(_metadata, self);
	EXPECT_EQ(pfn_of(self, split), self->pfns[split]);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, other_vma_left, TIMEOUT)
{
	struct child child;

	ASSERT_EQ(madvise(self->mem, psize(), MADV_DONTDUMP), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	self->special[0] = true;
	store(self, 1, NEW);
	expect_model(_metadata, self);
	EXPECT_EQ(pfn_of(self, 0), self->pfns[0]);
	expect_copies(_metadata, self, &child);
}

/* The rest of the folio is in a read-only VMA. */
TEST_F_TIMEOUT(cow_copy, readonly_vma, TIMEOUT)
{
	char *rest = self->mem + self->k * psize();
	size_t nr = self->nr;
	struct child child;

	ASSERT_EQ(mprotect(rest, (nr - self->k) * psize(), PROT_READ), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	self->nr = self->k;
	store(self, self->j, OLD);
	store_ascending(self, OLD);
	expect_model(_metadata, self);
	self->nr = nr;
	expect_segv(_metadata, self->mem, self->k, nr);
	EXPECT_EQ(mismatches(self, 0, nr, OLD), 0);
	child_finish(_metadata, &child);
}

/* A page without access amid the block. */
TEST_F_TIMEOUT(cow_copy, prot_none_page, TIMEOUT)
{
	char *page = self->mem + self->j * psize();
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(mprotect(page, psize(), PROT_NONE), 0);
	self->special[self->j] = true;
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGSEGV);
	ASSERT_EQ(mprotect(page, psize(), PROT_READ | PROT_WRITE), 0);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	expect_copies(_metadata, self, &child);
}

/* mprotect() does not make pages writable that are shared. */
TEST_F_TIMEOUT(cow_copy, mprotect_before_copy, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/* Locked memory stays locked: no page of the block can be reclaimed. */
TEST_F_TIMEOUT(cow_copy, mlocked, TIMEOUT)
{
	struct child child;
	size_t bad = 0;

	if (mlock(self->mem, self->size))
		SKIP(return, "mlock: %s", strerror(errno));
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	EXPECT_TRUE(kpageflags(self->kpageflags_fd, pfn_of(self, self->k)) & KPF_UNEVICTABLE);
	expect_copies(_metadata, self, &child);
	for (size_t i = 0; i < self->nr; i++)
		bad += !(kpageflags(self->kpageflags_fd, pfn_of(self, i)) & KPF_UNEVICTABLE);
	EXPECT_EQ(bad, 0);
	EXPECT_EQ(smaps_bytes(self->mem, "Locked:"), self->size);
}

/*
 * PTEs that do not map pages of the folio, and pages that nobody may read
 */

/* The two pages get @advice, and are no part of a block from now on. */
static void mark_two_pages(struct __test_metadata *_metadata,
			   struct _test_data_cow_copy *self, int advice)
{
	self->special[self->j] = true;
	self->special[self->r] = true;
	ASSERT_EQ(madvise(self->mem + self->j * psize(), psize(), advice), 0);
	ASSERT_EQ(madvise(self->mem + self->r * psize(), psize(), advice), 0);
}

TEST_F_TIMEOUT(cow_copy, holes, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	mark_two_pages(_metadata, self, MADV_DONTNEED);
	store(self, self->k, NEW);
	EXPECT_EQ(pagemap(self, self->j) & PM_PRESENT, 0);
	EXPECT_EQ(pagemap(self, self->r) & PM_PRESENT, 0);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->r), 0);
}

TEST_F_TIMEOUT(cow_copy, zero_page, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	mark_two_pages(_metadata, self, MADV_DONTNEED);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->r), 0);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->r), 0);
}

TEST_F_TIMEOUT(cow_copy, guard_pages, TIMEOUT)
{
	struct child child;

	if (madvise(self->base, psize(), MADV_GUARD_INSTALL))
		SKIP(return, "no guard regions");
	child_start(_metadata, self, &child, nothing, has_old);
	mark_two_pages(_metadata, self, MADV_GUARD_INSTALL);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGSEGV);
	EXPECT_EQ(try_store(self->mem, self->r, OTHER), SIGSEGV);
}

/* Have small folios of our own at @j and @r, amid those of the large one. */
static void replace_two_pages(struct __test_metadata *_metadata,
			      struct _test_data_cow_copy *self)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	set_policy("never");
	put(self->mem, self->j, NEW);
	put(self->mem, self->r, NEW);
	set_policy("always");
	child_finish(_metadata, &child);
	self->special[self->j] = true;
	self->special[self->r] = true;
}

static void expect_two_pages(struct __test_metadata *_metadata,
			     struct _test_data_cow_copy *self, __u64 value)
{
	EXPECT_EQ(get(self->mem, self->j), value);
	EXPECT_EQ(get(self->mem, self->r), value);
}

static int two_pages_have_new(struct _test_data_cow_copy *self)
{
	return has_old(self) || get(self->mem, self->j) != NEW ||
	       get(self->mem, self->r) != NEW;
}

/* Shared pages of other folios. */
TEST_F_TIMEOUT(cow_copy, foreign_pages, TIMEOUT)
{
	struct child child;

	replace_two_pages(_metadata, self);
	child_start(_metadata, self, &child, nothing, two_pages_have_new);
	store(self, self->k, NEW);
	EXPECT_EQ(pfn_of(self, self->j), self->pfns[self->j]);
	EXPECT_EQ(pfn_of(self, self->r), self->pfns[self->r]);
	put(self->mem, self->j, OTHER);
	put(self->mem, self->r, OTHER);
	expect_copies(_metadata, self, &child);
	expect_two_pages(_metadata, self, OTHER);
}

TEST_F_TIMEOUT(cow_copy, swapped_pages, TIMEOUT)
{
	struct child child;

	replace_two_pages(_metadata, self);
	mark_two_pages(_metadata, self, MADV_PAGEOUT);
	if (!(pagemap(self, self->j) & pagemap(self, self->r) & PM_SWAP))
		SKIP(return, "MADV_PAGEOUT did not swap: no swap space?");
	child_start(_metadata, self, &child, nothing, two_pages_have_new);
	store(self, self->k, NEW);
	EXPECT_TRUE(pagemap(self, self->j) & pagemap(self, self->r) & PM_SWAP);
	expect_copies(_metadata, self, &child);
	expect_two_pages(_metadata, self, NEW);
}

/*
 * Folios that were read back from swap stay in the swap cache as long as the child
 * has not read them. That is no reference that keeps a block from being copied.
 */
TEST_F_TIMEOUT(cow_copy, swapped_blocks, TIMEOUT)
{
	struct child child;

	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	if (!(pagemap(self, self->k) & PM_SWAP))
		SKIP(return, "MADV_PAGEOUT did not swap: no swap space?");
	child_start(_metadata, self, &child, nothing, has_old);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	if (folio_order_from(self, 0) < MIN_ORDER) {
		child_finish(_metadata, &child);
		SKIP(return, "swap is not read in large folios");
	}
	remember(self);
	self->folio_nr = 1UL << folio_order_from(self, 0);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/* The whole folio was swapped out and is read back, in whatever pieces. */
TEST_F_TIMEOUT(cow_copy, swapped_folio, TIMEOUT)
{
	struct child child;

	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	if (!(pagemap(self, self->k) & PM_SWAP))
		SKIP(return, "MADV_PAGEOUT did not swap: no swap space?");
	child_start(_metadata, self, &child, nothing, has_old);
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	put(self->mem, self->k, NEW + self->k);
	fill(self->mem, 0, self->nr, NEW);
	child_finish(_metadata, &child);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
}

/* Pages that KSM has merged stay merged. */
TEST_F_TIMEOUT(cow_copy, ksm_pages, TIMEOUT)
{
	struct child child;

	if (access(KSM_RUN_FILE, W_OK))
		SKIP(return, "no KSM");
	replace_two_pages(_metadata, self);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_MERGEABLE), 0);
	ASSERT_EQ(ksm_start(), 0);
	ASSERT_EQ(ksm_start(), 0);
	write_setting(KSM_RUN_FILE, "0");
	ASSERT_EQ(pfn_of(self, self->j), pfn_of(self, self->r));
	ASSERT_TRUE(kpageflags(self->kpageflags_fd, pfn_of(self, self->j)) & KPF_KSM);

	child_start(_metadata, self, &child, nothing, two_pages_have_new);
	store(self, self->k, NEW);
	EXPECT_EQ(pfn_of(self, self->j), self->pfns[self->j]);
	EXPECT_EQ(pfn_of(self, self->r), self->pfns[self->j]);
	expect_copies(_metadata, self, &child);
	expect_two_pages(_metadata, self, NEW);
	put(self->mem, self->j, OTHER);
	put(self->mem, self->r, OTHER);
	expect_two_pages(_metadata, self, OTHER);
	ASSERT_EQ(ksm_stop(), 0);
}

/*
 * Poison a page of the folio, which has a reference that keeps it in one piece. No
 * page of it is copied in a block then.
 */
static bool poison(struct __test_metadata *_metadata,
		   struct _test_data_cow_copy *self, size_t page)
{
	struct sigaction act = { .sa_handler = fault_handler };
	struct sigaction old;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	ASSERT_EQ(splice_j(self, fds[1]), 0);
	sigaction(SIGBUS, &act, &old);
	if (!sigsetjmp(fault_jump, 1))
		madvise(self->mem + page * psize(), psize(), MADV_HWPOISON);
	sigaction(SIGBUS, &old, NULL);
	close(fds[0]);
	close(fds[1]);
	return kpageflags(self->kpageflags_fd, pfn_of(self, page)) & KPF_HWPOISON;
}

static void unpoison(struct _test_data_cow_copy *self, size_t page)
{
	unsigned long pfn = self->pfns[page];

	munmap(self->mem, self->size);
	/* The page is lost if that fails; there is nothing to do about it. */
	unpoison_memory(pfn);
}

static void expect_poisoned_j(struct __test_metadata *_metadata,
			      struct _test_data_cow_copy *self,
			      struct child *child)
{
	self->special[self->j] = true;
	self->orders = 0;
	store(self, self->k, NEW);
	EXPECT_EQ(pfn_of(self, self->j), self->pfns[self->j]);
	expect_copies(_metadata, self, child);
	EXPECT_EQ(pfn_of(self, self->j), self->pfns[self->j]);
	EXPECT_TRUE(kpageflags(self->kpageflags_fd, self->pfns[self->j]) & KPF_HWPOISON);
	unpoison(self, self->j);
}

static int others_have_old(struct _test_data_cow_copy *self)
{
	self->special[self->j] = true;
	return has_old(self);
}

TEST_F_TIMEOUT(cow_copy, poisoned_before_fork, TIMEOUT)
{
	struct child child;

	if (!poison(_metadata, self, self->j))
		SKIP(return, "cannot poison a page of a large folio");
	child_start(_metadata, self, &child, nothing, others_have_old);
	expect_poisoned_j(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, poisoned_after_fork, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, others_have_old);
	if (!poison(_metadata, self, self->j)) {
		child_finish(_metadata, &child);
		SKIP(return, "cannot poison a page of a large folio");
	}
	expect_poisoned_j(_metadata, self, &child);
}

/* Whichever page of a block it is. */
TEST_F_TIMEOUT(cow_copy, poisoned_each_page, TIMEOUT)
{
	const size_t nr = self->folio_nr < BLOCK ? self->folio_nr : BLOCK;
	struct child child;

	for (size_t page = 0; page < nr; page++) {
		self->j = page;
		self->k = page ? 0 : 1;
		map_folios(_metadata, self, self->mem, 1);
		if (!poison(_metadata, self, self->j))
			SKIP(return, "cannot poison a page of a large folio");
		child_start(_metadata, self, &child, nothing, others_have_old);
		expect_poisoned_j(_metadata, self, &child);
		self->special[page] = false;
	}
}

/*
 * The poisoned page is the one that is stored to. It may be copied as long as it
 * can be read, or not; the block is not.
 */
TEST_F_TIMEOUT(cow_copy, poisoned_fault_page, TIMEOUT)
{
	struct child child;
	int sig;

	child_start(_metadata, self, &child, nothing, others_have_old);
	if (!poison(_metadata, self, self->j)) {
		child_finish(_metadata, &child);
		SKIP(return, "cannot poison a page of a large folio");
	}
	sig = try_store(self->mem, self->j, NEW + self->j);
	EXPECT_TRUE(!sig || sig == SIGBUS);
	self->special[self->j] = true;
	if (!sig)
		EXPECT_EQ(folio_order_from(self, self->j), 0);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
	EXPECT_TRUE(kpageflags(self->kpageflags_fd, self->pfns[self->j]) & KPF_HWPOISON);
	unpoison(self, self->j);
}

/*
 * Moved pages
 */

/* Blocks are aligned in the address space, whatever the old folio is. */
TEST_F_TIMEOUT(cow_copy, moved_unaligned, TIMEOUT)
{
	char *to = self->base + 3 * self->pmd + 3 * psize();
	struct child child;

	move(_metadata, self->mem, self->size, to);
	self->mem = to;
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	store(self, self->nr - 1, NEW);
	expect_copies(_metadata, self, &child);
}

/* Halves of the folio in two page tables; the second starts its table. */
TEST_F_TIMEOUT(cow_copy, moved_to_other_table, TIMEOUT)
{
	char *to = self->base + 4 * self->pmd;
	size_t half = self->nr / 2;
	struct child child;

	move(_metadata, self->mem + half * psize(), half * psize(), to);
	self->mem = to;
	self->nr = half;
	fill(self->mem, 0, half, OLD);
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, 0, NEW);
	expect_copies(_metadata, self, &child);
}

/* The folio goes over into the next page table in the middle, or near an end. */
static void straddle(struct __test_metadata *_metadata,
		     struct _test_data_cow_copy *self, size_t before)
{
	char *to = self->base + 4 * self->pmd - before * psize();
	struct child child;

	map_folios(_metadata, self, self->base + self->pmd, 1);
	move(_metadata, self->mem, self->size, to);
	self->mem = to;
	fill(self->mem, 0, self->nr, OLD);
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, before - 1, NEW);
	store(self, before, NEW);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, moved_across_tables, TIMEOUT)
{
	straddle(_metadata, self, self->nr / 2);
	straddle(_metadata, self, 1);
	straddle(_metadata, self, self->nr - 1);
}

/*
 * Folios that are neighbours in memory as well as in the address space are copied
 * each for itself.
 */
TEST_F_TIMEOUT(cow_copy, neighbouring_folios, TIMEOUT)
{
	struct child child;
	size_t found = 0;

	map_folios(_metadata, self, self->base + self->pmd, TABLE / self->folio_nr);
	for (size_t i = self->folio_nr; i < self->nr; i += 2 * self->folio_nr)
		found += pfn_of(self, i) == pfn_of(self, i - 1) + 1;
	if (!found)
		SKIP(return, "no folios are neighbours in memory");
	child_start(_metadata, self, &child, nothing, has_old);
	store_descending(self, OLD);
	expect_copies(_metadata, self, &child);
}

/* Two pages of the folio have changed places. */
TEST_F_TIMEOUT(cow_copy, moved_out_of_order, TIMEOUT)
{
	char *j = self->mem + self->j * psize();
	char *k = self->mem + self->k * psize();
	struct child child;

	move(_metadata, j, psize(), self->base);
	move(_metadata, k, psize(), j);
	move(_metadata, self->base, psize(), k);
	fill(self->mem, 0, self->nr, OLD);
	child_start(_metadata, self, &child, nothing, has_old);
	self->special[self->j] = true;
	self->special[self->k] = true;
	put(self->mem, self->j, NEW + self->j);
	put(self->mem, self->k, NEW + self->k);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(get(self->mem, self->j), NEW + self->j);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
}

/*
 * Tracking of writes
 */

/* One store makes one page soft-dirty. */
TEST_F_TIMEOUT(cow_copy, soft_dirty, TIMEOUT)
{
	struct child child;

	if (!softdirty_supported())
		SKIP(return, "no soft-dirty tracking");
	child_start(_metadata, self, &child, nothing, has_old);
	clear_softdirty();
	self->orders = 0;
	store(self, self->k, NEW);
	EXPECT_TRUE(pagemap(self, self->k) & PM_SOFT_DIRTY);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 1);
	store(self, self->j, NEW);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), 2);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(pages_with(self, PM_SOFT_DIRTY), self->nr);
}

/* Write-protected pages still go to the handler, and others are copied alone. */
TEST_F_TIMEOUT(cow_copy, uffd_wp, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_SIGBUS);
	char *j = self->mem + self->j * psize();
	struct child child;

	if (uffd < 0)
		SKIP(return, "no userfaultfd write protection");
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, false, true, false), 0);
	ASSERT_EQ(uffd_protect(uffd, j, psize(), true), 0);
	self->special[self->j] = true;
	self->orders = 0;
	store(self, self->k, NEW);
	EXPECT_TRUE(pagemap(self, self->j) & PM_UFFD_WP);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), 0);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	ASSERT_EQ(uffd_protect(uffd, j, psize(), false), 0);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), 0);
	close(uffd);
}

/* Asynchronous tracking tells exactly the pages that were written. */
TEST_F_TIMEOUT(cow_copy, uffd_wp_async, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_ASYNC);
	struct child child;

	if (uffd < 0)
		SKIP(return, "no asynchronous write protection");
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(uffd_register(uffd, self->mem, self->size, false, true, false), 0);
	ASSERT_EQ(uffd_protect(uffd, self->mem, self->size, true), 0);
	self->orders = 0;
	store(self, self->k, NEW);
	EXPECT_EQ(pagemap(self, self->k) & PM_UFFD_WP, 0);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), self->nr - 1);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(pages_with(self, PM_UFFD_WP), 0);
	close(uffd);
}

/* Pages without access in an accessible VMA. */
TEST_F_TIMEOUT(cow_copy, uffd_rwp, TIMEOUT)
{
	int uffd = uffd_open(UFFD_FEATURE_RWP | UFFD_FEATURE_SIGBUS);
	char *j = self->mem + self->j * psize();
	struct child child;

	if (uffd < 0)
		SKIP(return, "no userfaultfd read-write protection");
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(uffd_rwp_register(uffd, self->mem, self->size), 0);
	ASSERT_EQ(uffd_rwprotect(uffd, j, psize(), true), 0);
	self->special[self->j] = true;
	self->orders = 0;
	store(self, self->k, NEW);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	expect_copies(_metadata, self, &child);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), SIGBUS);
	ASSERT_EQ(uffd_rwprotect(uffd, j, psize(), false), 0);
	EXPECT_EQ(get(self->mem, self->j), OLD + self->j);
	EXPECT_EQ(try_store(self->mem, self->j, OTHER), 0);
	close(uffd);
}

/* Pages of which MADV_FREE has given up the content, as long as nobody stores. */

static size_t not_freed(struct _test_data_cow_copy *self, __u64 base)
{
	size_t bad = 0;

	for (size_t i = 0; i < self->nr; i++)
		bad += !self->special[i] && get(self->mem, i) &&
		       get(self->mem, i) != base + i;
	return bad;
}

static int has_old_or_nothing(struct _test_data_cow_copy *self)
{
	return !!not_freed(self, OLD);
}

TEST_F_TIMEOUT(cow_copy, lazyfree_keeps_store, TIMEOUT)
{
	struct child child;

	ASSERT_EQ(madvise(self->mem, self->size, MADV_FREE), 0);
	child_start(_metadata, self, &child, nothing, has_old_or_nothing);
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	self->special[self->k] = true;
	EXPECT_EQ(not_freed(self, OLD), 0);
	child_finish(_metadata, &child);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
}

/*
 * Writes by others than the CPU's stores
 */

/* The kernel's copy to user memory takes the fault. */
TEST_F_TIMEOUT(cow_copy, kernel_writes, TIMEOUT)
{
	__u64 value = NEW + self->k;
	struct child child;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	ASSERT_EQ(write(fds[1], &value, sizeof(value)), sizeof(value));
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(read(fds[0], self->mem + self->k * psize(), sizeof(value)),
		  sizeof(value));
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	model_store(self, self->k);
	expect_copies(_metadata, self, &child);
}

static int write_to_parent(struct _test_data_cow_copy *self)
{
	char *k = self->mem + self->k * psize();

	if (!write_to_process(getppid(), k, NEW + self->k))
		return 1;
	return follow_model(self) || has_old(self);
}

/* Another process takes the fault: nothing of its own is copied. */
TEST_F_TIMEOUT(cow_copy, other_process_writes, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, write_to_parent, has_old);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	model_store(self, self->k);
	expect_copies(_metadata, self, &child);
}

/* A forced write copies one page of a read-only VMA, which stays read-only. */
static void expect_forced_write(struct __test_metadata *_metadata,
				struct _test_data_cow_copy *self,
				struct child *child)
{
	EXPECT_EQ(get(self->mem, self->k), OTHER);
	model_copy(self, self->k, 0);
	expect_model(_metadata, self);
	expect_segv(_metadata, self->mem, 0, self->nr);
	EXPECT_EQ(get(self->mem, self->k), OTHER);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	expect_copies(_metadata, self, child);
}

TEST_F_TIMEOUT(cow_copy, forced_write_proc_mem, TIMEOUT)
{
	int fd = open("/proc/self/mem", O_RDWR);
	__u64 value = OTHER;
	struct child child;
	ssize_t ret;

	ASSERT_GE(fd, 0);
	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	ret = pwrite(fd, &value, sizeof(value),
		     (uintptr_t)self->mem + self->k * psize());
	close(fd);
	if (ret < 0) {
		child_finish(_metadata, &child);
		SKIP(return, "forced writes to /proc/self/mem are not allowed");
	}
	expect_forced_write(_metadata, self, &child);
}

static int poke_parent(struct _test_data_cow_copy *self)
{
	return !poke_process(getppid(), self->mem + self->k * psize(), OTHER);
}

TEST_F_TIMEOUT(cow_copy, forced_write_ptrace, TIMEOUT)
{
	struct child child;

	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	child_start(_metadata, self, &child, poke_parent, has_old);
	expect_forced_write(_metadata, self, &child);
}

/*
 * Failures
 */

/*
 * What is counted when blocks of order @from and below were tried in vain, and
 * one of order @got was copied; 0 if it was a single page.
 */
static void expect_fallback(struct __test_metadata *_metadata,
			    const struct counts *before, int from, int got,
			    bool charge)
{
	struct counts now;

	read_counts(&now);
	for (int i = MIN_ORDER; i <= MAX_ORDER; i++) {
		bool fell = i <= from && i > got;

		EXPECT_EQ(now.fallback[i] - before->fallback[i], fell)
			TH_LOG("order %d", i);
		EXPECT_EQ(now.charge[i] - before->charge[i], fell && charge)
			TH_LOG("order %d", i);
		EXPECT_EQ(now.alloc[i] - before->alloc[i], i == got)
			TH_LOG("order %d", i);
	}
}

/* The cgroup has room for @room pages, which do for a block of order @got. */
static void expect_charged(struct __test_metadata *_metadata,
			   struct _test_data_cow_copy *self, size_t room, int got)
{
	const char *reason = enter_cgroup();
	struct counts before;
	struct child child;
	int from;

	if (reason)
		SKIP(return, "%s", reason);
	child_start(_metadata, self, &child, nothing, has_old);
	from = block_order(self, self->k);
	read_counts(&before);
	ASSERT_TRUE(try_leave_room(room));
	put(self->mem, self->k, NEW + self->k);
	write_setting(CGROUP "/memory.max", "max");

	if (has_counters())
		expect_fallback(_metadata, &before, from, got,
				/* charge = */ true);
	allow_orders(self, got ? 1UL << got : 0);
	model_store(self, self->k);
	expect_model(_metadata, self);
	allow_orders(self, ORDERS);
	expect_copies(_metadata, self, &child);
	leave_cgroup();
}

/* Nobody is killed for a block that does not fit if a page does. */
TEST_F_TIMEOUT(cow_copy, memcg_limit_page, TIMEOUT)
{
	expect_charged(_metadata, self, (1 << MIN_ORDER) - 1, 0);
}

/* A smaller block fits. */
TEST_F_TIMEOUT(cow_copy, memcg_limit_block, TIMEOUT)
{
	expect_charged(_metadata, self, (1 << MIN_ORDER) + 2, MIN_ORDER);
}

/* The first large folio of a cgroup may be split as others are. */
TEST_F_TIMEOUT(cow_copy, memcg_unmap_page, TIMEOUT)
{
	const char *reason = enter_cgroup();
	struct child child;

	if (reason)
		SKIP(return, "%s", reason);
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	ASSERT_EQ(madvise(self->mem + self->j * psize(), psize(), MADV_DONTNEED), 0);
	EXPECT_EQ(get(self->mem, self->j), 0);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	child_finish(_metadata, &child);
	leave_cgroup();
}

static int write_to_parent_from_cgroup(struct _test_data_cow_copy *self)
{
	int bad;

	/* If that cannot be done, it is what other_process_writes does. */
	if (enter_cgroup())
		return write_to_parent(self);
	bad = !try_leave_room((1 << MIN_ORDER) - 1) || write_to_parent(self);
	write_setting(CGROUP "/memory.max", "max");
	leave_cgroup();
	return bad;
}

/* Another process takes the fault, and has no room in its cgroup: it need not. */
TEST_F_TIMEOUT(cow_copy, other_cgroup_writes, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, write_to_parent_from_cgroup, has_old);
	EXPECT_EQ(get(self->mem, self->k), NEW + self->k);
	model_store(self, self->k);
	expect_copies(_metadata, self, &child);
}

static void expect_allocated(struct __test_metadata *_metadata,
			     struct _test_data_cow_copy *self, int fail_order)
{
	struct counts before;
	struct child child;
	int from, got;

	child_start(_metadata, self, &child, nothing, has_old);
	from = block_order(self, self->k);
	read_counts(&before);
	if (!fail_allocations(fail_order)) {
		child_finish(_metadata, &child);
		SKIP(return, "no fault injection for page allocation");
	}
	put(self->mem, self->k, NEW + self->k);
	fail_no_allocations();

	self->orders &= (1UL << fail_order) - 1;
	got = block_order(self, self->k);
	if (has_counters())
		expect_fallback(_metadata, &before, from, got,
				/* charge = */ false);
	model_store(self, self->k);
	expect_model(_metadata, self);
	allow_orders(self, ORDERS);
	expect_copies(_metadata, self, &child);
}

/* There is no memory for any block. */
TEST_F_TIMEOUT(cow_copy, alloc_fails, TIMEOUT)
{
	expect_allocated(_metadata, self, MIN_ORDER);
}

/* There is no memory for the largest block. */
TEST_F_TIMEOUT(cow_copy, alloc_fails_large, TIMEOUT)
{
	expect_allocated(_metadata, self, MAX_ORDER);
}

/* The order of the folio that @page is in, BROKEN if it is none of a block. */
static int copied_order(struct _test_data_cow_copy *self, size_t page)
{
	for (int order = MAX_ORDER; order >= 0; order--) {
		size_t before = block_offset(self, page, order);

		if (before <= page &&
		    folio_order_from(self, page - before) == order)
			return order;
	}
	return BROKEN;
}

/*
 * One allocation after the other fails, of all that the fault makes. A smaller
 * block is copied then, or a page, or the fault is taken again.
 */
static void expect_each_failure(struct __test_metadata *_metadata,
				struct _test_data_cow_copy *self, bool new_cgroup)
{
	const size_t k = self->k;
	bool failed = true;
	struct child child;
	int fd, nth;

	if (!may_fail_each())
		SKIP(return, "no fault injection for page allocation");
	for (nth = 0; failed && nth < MAX_ALLOCATIONS; nth++) {
		map_folios(_metadata, self, self->mem, 1);
		child_start(_metadata, self, &child, nothing, has_old);
		if (new_cgroup)
			ASSERT_EQ(enter_cgroup(), NULL);
		fd = fail_nth(nth + 1);
		put(self->mem, k, NEW + k);
		failed = has_failed(fd);
		if (new_cgroup)
			leave_cgroup();
		ASSERT_GE(copied_order(self, k), 0);
		model_copy(self, k, copied_order(self, k));
		expect_copies(_metadata, self, &child);
	}
	EXPECT_FALSE(failed);
	/* The first one was for the page or block, at least. */
	EXPECT_GT(nth, 1);
}

TEST_F_TIMEOUT(cow_copy, each_alloc_fails, TIMEOUT)
{
	expect_each_failure(_metadata, self, /* new_cgroup = */ false);
}

/* The first large folio of a memcg needs its list of folios to split. */
TEST_F_TIMEOUT(cow_copy, each_alloc_fails_in_cgroup, TIMEOUT)
{
	const char *reason = enter_cgroup();

	if (reason)
		SKIP(return, "%s", reason);
	leave_cgroup();
	expect_each_failure(_metadata, self, /* new_cgroup = */ true);
}

/*
 * Sizes: what the administrator and the program allow
 */

TEST_F_TIMEOUT(cow_copy, size_disabled, TIMEOUT)
{
	struct child child;

	enable_copies(self, 1UL << (MAX_ORDER - 1));
	child_start(_metadata, self, &child, nothing, has_old);
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/* It is no fallback, either, if no size is enabled. */
TEST_F_TIMEOUT(cow_copy, all_sizes_disabled, TIMEOUT)
{
	struct counts before;
	struct child child;

	enable_copies(self, 0);
	child_start(_metadata, self, &child, nothing, has_old);
	read_counts(&before);
	store(self, self->k, NEW);
	if (has_counters())
		expect_fallback(_metadata, &before, 0, 0, false);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, size_madvise, TIMEOUT)
{
	struct child child;

	self->not_advised = true;
	map_folios(_metadata, self, self->mem, 1);
	child_start(_metadata, self, &child, nothing, has_old);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_model(_metadata, self);
	allow_orders(self, ORDERS);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_HUGEPAGE), 0);
	store(self, 0, NEW);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, nohugepage, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_NOHUGEPAGE), 0);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, thp_disable, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
	self->orders = 0;
	store(self, self->k, NEW);
	expect_copies(_metadata, self, &child);
}

/*
 * Policy
 */

/* What kernels without large copies do. */
TEST_F_TIMEOUT(cow_copy, never, TIMEOUT)
{
	struct counts before;
	struct child child;

	set_policy("never");
	self->orders = 0;
	child_start(_metadata, self, &child, nothing, has_old);
	read_counts(&before);
	store_ascending(self, NEW);
	if (has_counters())
		expect_fallback(_metadata, &before, 0, 0, false);
	expect_copies(_metadata, self, &child);
}

/* The largest block is what copy_max_bytes says. */
TEST_F_TIMEOUT(cow_copy, always_max_bytes, TIMEOUT)
{
	static const int max_orders[] = { 0, 1, 2, 3, 6, 8 };
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(max_orders); i++) {
		int max = max_orders[i];

		if (psize() << max > self->pmd / 2)
			continue;
		defragment();
		map_folios(_metadata, self, self->mem, 1);
		enable_copies(self, (1UL << 9) - (1UL << MIN_ORDER));
		self->orders &= (2UL << max) - 1;
		set_max_order(max);
		child_start(_metadata, self, &child, nothing, has_old);
		store(self, self->k, NEW);
		expect_copies(_metadata, self, &child);
	}
}

/* Number of blocks of one order in the model, or of single pages. */
static long nr_blocks(struct _test_data_cow_copy *self, int order)
{
	long pages = 0;

	for (size_t i = 0; i < self->nr; i++)
		pages += self->model[i] == order;
	return pages >> order;
}

static void expect_counted(struct __test_metadata *_metadata,
			   struct _test_data_cow_copy *self,
			   const struct counts *before)
{
	struct counts now;

	read_counts(&now);
	for (int i = MIN_ORDER; i <= MAX_ORDER; i++) {
		EXPECT_EQ(now.alloc[i] - before->alloc[i], nr_blocks(self, i))
			TH_LOG("order %d", i);
		EXPECT_EQ(now.fallback[i] - before->fallback[i], 0)
			TH_LOG("order %d", i);
		EXPECT_EQ(now.charge[i] - before->charge[i], 0)
			TH_LOG("order %d", i);
	}
}

TEST_F_TIMEOUT(cow_copy, always_counted, TIMEOUT)
{
	struct counts before;
	struct child child;

	if (!has_counters())
		SKIP(return, "no counters");
	child_start(_metadata, self, &child, nothing, has_old);
	read_counts(&before);
	store_ascending(self, NEW);
	expect_counted(_metadata, self, &before);
	expect_copies(_metadata, self, &child);
}

/* The tracepoint: one event for each fault that copies a block, or was to. */
TEST_F_TIMEOUT(cow_copy, traced_always, TIMEOUT)
{
	const size_t k = self->k;
	struct child child;
	size_t nr;

	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	child_start(_metadata, self, &child, nothing, has_old);
	nr = 1UL << block_order(self, k);
	store(self, k, NEW);
	EXPECT_EQ(traced("cow_fault: "), 1);
	EXPECT_EQ(traced("address=%p order=%d action=copy reason=always nr_pages=%zu\n",
			 self->mem + k * psize(), sz2ord(self->size, psize()), nr), 1);
	trace_stop();
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, traced_fallback, TIMEOUT)
{
	struct child child;

	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	child_start(_metadata, self, &child, nothing, has_old);
	if (!fail_allocations(MIN_ORDER)) {
		trace_stop();
		child_finish(_metadata, &child);
		SKIP(return, "no fault injection for page allocation");
	}
	put(self->mem, self->k, NEW + self->k);
	fail_no_allocations();
	EXPECT_EQ(traced("cow_fault: "), 1);
	EXPECT_EQ(traced("action=fallback reason=memory nr_pages=1\n"), 1);
	trace_stop();
	child_finish(_metadata, &child);
}

/* Stores far from each other: one page of each block. */
static void store_scattered(struct _test_data_cow_copy *self)
{
	for (size_t i = self->k % BLOCK; i < self->nr; i += BLOCK)
		store(self, i, NEW);
}

TEST_F_TIMEOUT(cow_copy, always_scattered, TIMEOUT)
{
	struct child child;

	child_start(_metadata, self, &child, nothing, has_old);
	store_scattered(self);
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, adaptive_scattered, TIMEOUT)
{
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	set_policy("adaptive");
	child_start(_metadata, self, &child, nothing, has_old);
	/* What was read is no evidence. */
	EXPECT_EQ(mismatches(self, 0, self->nr, OLD), 0);
	self->orders = 0;
	store_scattered(self);
	expect_model(_metadata, self);
	self->orders = ORDERS;
	set_policy("always");
	expect_copies(_metadata, self, &child);
}

static bool all_written(struct _test_data_cow_copy *self, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		if (self->model[i] == SHARED)
			return false;
	return true;
}

/* As many pages beside the block were written to. */
static bool has_evidence(struct _test_data_cow_copy *self, size_t page, int order)
{
	size_t first = page - block_offset(self, page, order);
	size_t nr = 1UL << order;

	return (first >= nr && all_written(self, first - nr, first)) ||
	       (first + 2 * nr <= self->nr &&
		all_written(self, first + nr, first + 2 * nr));
}

/* The order of the folio that @page is in. */
static int folio_order_of(struct _test_data_cow_copy *self, size_t page)
{
	while (page && is_tail(self->kpageflags_fd, pfn_of(self, page)))
		page--;
	return folio_order_from(self, page);
}

/* In whatever order pages are written to, no block is copied without a reason. */
TEST_F_TIMEOUT(cow_copy, adaptive_shuffled, TIMEOUT)
{
	struct child child;
	size_t bad = 0;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	set_policy("adaptive");
	child_start(_metadata, self, &child, nothing, has_old);
	for (size_t i = 0; i < self->nr; i++) {
		size_t page = shuffled_page(i, self->nr);
		int order;

		put(self->mem, page, NEW + page);
		if (self->model[page] != SHARED)
			continue;
		order = folio_order_of(self, page);
		ASSERT_NE(order, BROKEN);
		ASSERT_LE(order, block_order(self, page));
		bad += order && !has_evidence(self, page, order);
		model_copy(self, page, order);
	}
	EXPECT_EQ(bad, 0) TH_LOG("blocks were copied without evidence");
	expect_copies(_metadata, self, &child);
}

/* Have folios in two page tables: the end of one, and the start of the next. */
static void map_two_tables(struct __test_metadata *_metadata,
			   struct _test_data_cow_copy *self)
{
	map_folios(_metadata, self, self->base + 2 * self->pmd - TABLE * psize(),
		   2 * TABLE / self->folio_nr);
}

/* The order that is copied when so many pages beside it have been written to. */
static int run_order(struct _test_data_cow_copy *self, size_t run)
{
	int max = __builtin_ctzl(self->folio_nr);
	int order = MIN_ORDER - 1;

	while (order < max && self->orders & (2UL << order) && 2UL << order <= run)
		order++;
	return order < MIN_ORDER ? 0 : order;
}

/*
 * A sequential writer: blocks are as large as what was written before them. It
 * starts anew with each page table.
 */
static void model_ramp(struct _test_data_cow_copy *self, bool descending)
{
	for (size_t i = 0; i < self->nr; i++) {
		size_t run = i % TABLE;

		if (descending)
			run = TABLE - 1 - run;
		self->model[i] = run_order(self, run);
	}
}

static void expect_ramp(struct __test_metadata *_metadata,
			struct _test_data_cow_copy *self, bool descending)
{
	struct counts before;
	long faults = 0, want = 0;

	model_ramp(self, descending);
	for (int i = 0; i < NR_ORDERS; i++)
		want += nr_blocks(self, i);

	set_policy("adaptive");
	read_counts(&before);
	for (size_t i = 0; i < self->nr; i++) {
		size_t page = descending ? self->nr - 1 - i : i;

		faults += store_faults(self->mem, page, NEW + page);
	}
	set_policy("always");
	EXPECT_EQ(faults, want);
	expect_counted(_metadata, self, &before);
	expect_model(_metadata, self);
}

TEST_F_TIMEOUT(cow_copy, adaptive_ascending, TIMEOUT)
{
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	child_start(_metadata, self, &child, nothing, has_old);
	expect_ramp(_metadata, self, /* descending = */ false);
	expect_copies(_metadata, self, &child);
}

/* Of blocks only, not of the single pages before them. */
TEST_F_TIMEOUT(cow_copy, traced_run, TIMEOUT)
{
	struct child child;
	size_t blocks = 0;

	if (!has_policy() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	child_start(_metadata, self, &child, nothing, has_old);
	expect_ramp(_metadata, self, /* descending = */ false);
	for (int i = MIN_ORDER; i <= MAX_ORDER; i++)
		blocks += nr_blocks(self, i);
	EXPECT_EQ(traced("action=copy reason=run"), blocks);
	EXPECT_EQ(traced("cow_fault: "), blocks);
	trace_stop();
	expect_copies(_metadata, self, &child);
}

TEST_F_TIMEOUT(cow_copy, adaptive_descending, TIMEOUT)
{
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	child_start(_metadata, self, &child, nothing, has_old);
	expect_ramp(_metadata, self, /* descending = */ true);
	expect_copies(_metadata, self, &child);
}

static int has_new(struct _test_data_cow_copy *self)
{
	return !!mismatches(self, 0, self->nr, NEW);
}

/* What was written before a fork is no evidence after it. */
TEST_F_TIMEOUT(cow_copy, adaptive_forgets_at_fork, TIMEOUT)
{
	struct child first, second;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	child_start(_metadata, self, &first, nothing, has_old);
	expect_ramp(_metadata, self, /* descending = */ false);
	child_start(_metadata, self, &second, nothing, has_new);
	expect_ramp(_metadata, self, /* descending = */ false);
	child_finish(_metadata, &second);
	expect_copies(_metadata, self, &first);
}

/* The cap ends the growth early, or late. */
TEST_F_TIMEOUT(cow_copy, adaptive_max_bytes, TIMEOUT)
{
	static const int max_orders[] = { MIN_ORDER, MIN_ORDER + 1, 6 };
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(max_orders); i++) {
		int max = max_orders[i];

		defragment();
		map_two_tables(_metadata, self);
		enable_copies(self, (1UL << 8) - (1UL << MIN_ORDER));
		self->orders &= (2UL << max) - 1;
		set_max_order(max);
		child_start(_metadata, self, &child, nothing, has_old);
		expect_ramp(_metadata, self, /* descending = */ false);
		expect_copies(_metadata, self, &child);
	}
}

/* No order is copied beside a run that is a page shorter. */
TEST_F_TIMEOUT(cow_copy, adaptive_run_length, TIMEOUT)
{
	static const size_t runs[] = { 3, 4, 7, 8, 15, 16 };
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	child_start(_metadata, self, &child, nothing, has_old);
	for (size_t i = 0; i < ARRAY_SIZE(runs); i++) {
		size_t page = 4 * BLOCK * i + BLOCK;

		set_policy("never");
		for (size_t j = page - runs[i]; j < page; j++) {
			put(self->mem, j, NEW + j);
			model_copy(self, j, 0);
		}
		set_policy("adaptive");
		put(self->mem, page, NEW + page);
		model_copy(self, page, run_order(self, runs[i]));
	}
	expect_model(_metadata, self);
	set_policy("always");
	expect_copies(_metadata, self, &child);
}

/* A page that was not written to ends the run, wherever it is. */
TEST_F_TIMEOUT(cow_copy, adaptive_hole_in_run, TIMEOUT)
{
	static const size_t holes[] = { 2, 3, 6, 11 };
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	child_start(_metadata, self, &child, nothing, has_old);
	for (size_t i = 0; i < ARRAY_SIZE(holes); i++) {
		size_t page = 4 * BLOCK * i + BLOCK;

		set_policy("never");
		for (size_t j = page - BLOCK; j < page; j++) {
			if (j == page - holes[i])
				continue;
			put(self->mem, j, NEW + j);
			model_copy(self, j, 0);
		}
		set_policy("adaptive");
		put(self->mem, page, NEW + page);
		model_copy(self, page, run_order(self, holes[i] - 1));
	}
	expect_model(_metadata, self);
	set_policy("always");
	expect_copies(_metadata, self, &child);
}

/* Pages that are swapped out are no evidence. */
TEST_F_TIMEOUT(cow_copy, adaptive_beside_swap, TIMEOUT)
{
	size_t page = self->folio_nr;
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	if (!has_swap())
		SKIP(return, "no swap space");
	map_two_tables(_metadata, self);
	for (size_t i = 0; i < page; i++)
		self->special[i] = true;
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	EXPECT_TRUE(pagemap(self, page - 1) & PM_SWAP);
	child_start(_metadata, self, &child, nothing, has_old);
	set_policy("adaptive");
	put(self->mem, page, NEW + page);
	set_policy("always");
	model_copy(self, page, 0);
	expect_copies(_metadata, self, &child);
	for (size_t i = 0; i < page; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
}

/* What was written in another VMA is no evidence. */
TEST_F_TIMEOUT(cow_copy, adaptive_stays_in_vma, TIMEOUT)
{
	struct child child;

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	map_two_tables(_metadata, self);
	ASSERT_EQ(madvise(self->mem, BLOCK * psize(), MADV_DONTDUMP), 0);
	child_start(_metadata, self, &child, nothing, has_old);
	set_policy("adaptive");
	for (size_t i = 0; i < 4 * BLOCK; i++) {
		put(self->mem, i, NEW + i);
		self->model[i] = run_order(self, i < BLOCK ? i : i - BLOCK);
	}
	expect_model(_metadata, self);
	set_policy("always");
	expect_copies(_metadata, self, &child);
}

/*
 * Races
 */

struct race;
typedef void (*race_fn)(struct race *race);

struct race {
	struct _test_data_cow_copy *self;
	pthread_barrier_t barrier;
	race_fn first;
	race_fn second;
	race_fn check;		/* after both have run */
	child_fn child_fn;	/* what the child does in the end */
	struct child child;
	bool child_told;	/* to end, already */
	bool stop;
	int fd;
	size_t bad;
};

/* Run @fn at the same time as others run theirs; false if it was the last time. */
static bool race_round(struct race *race, race_fn fn)
{
	pthread_barrier_wait(&race->barrier);
	if (race->stop)
		return false;
	fn(race);
	pthread_barrier_wait(&race->barrier);
	return true;
}

static void *race_first(void *arg)
{
	struct race *race = arg;

	while (race_round(race, race->first))
		;
	return NULL;
}

static void *race_second(void *arg)
{
	struct race *race = arg;

	while (race_round(race, race->second))
		;
	return NULL;
}

static void run_nothing(struct race *race)
{
}

/* Have the two functions run at the same time, each time on a new folio. */
static void race(struct __test_metadata *_metadata,
		 struct _test_data_cow_copy *self, struct race *race)
{
	time_t end = time(NULL) + RACE_SECONDS;
	pthread_t threads[2];

	/* The mapping is as large as the folio, so it is one of that order. */
	enable_orders(ORDERS | 1UL << sz2ord(self->size, psize()), "madvise");
	race->self = self;
	ASSERT_EQ(pthread_barrier_init(&race->barrier, NULL, 3), 0);
	ASSERT_EQ(pthread_create(&threads[0], NULL, race_first, race), 0);
	ASSERT_EQ(pthread_create(&threads[1], NULL, race_second, race), 0);
	while (time(NULL) <= end) {
		ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
		fault_in(self->mem, self->size);
		fill(self->mem, 0, self->nr, OLD);
		child_start(_metadata, self, &race->child, nothing, race->child_fn);
		race_round(race, run_nothing);
		race->check(race);
		if (race->child_told) {
			expect_exit(_metadata, race->child.pid);
			close(race->child.go);
			close(race->child.ready);
		} else {
			child_finish(_metadata, &race->child);
		}
	}
	race->stop = true;
	race_round(race, run_nothing);
	ASSERT_EQ(pthread_join(threads[0], NULL), 0);
	ASSERT_EQ(pthread_join(threads[1], NULL), 0);
	EXPECT_EQ(race->bad, 0);
}

static void store_even(struct race *race)
{
	for (size_t i = 0; i < race->self->nr; i += 2)
		put(race->self->mem, i, NEW + i);
}

static void store_odd(struct race *race)
{
	for (size_t i = 1; i < race->self->nr; i += 2)
		put(race->self->mem, i, NEW + i);
}

static void store_all_but_j(struct race *race)
{
	for (size_t i = 0; i < race->self->nr; i++)
		if (i != race->self->j)
			put(race->self->mem, i, NEW + i);
}

static void check_new(struct race *race)
{
	race->bad += mismatches(race->self, 0, race->self->nr, NEW);
}

/* Two threads fault in each block: no store gets lost. */
TEST_F_TIMEOUT(cow_copy, race_two_threads, TIMEOUT)
{
	struct race args = {
		.first = store_even,
		.second = store_odd,
		.check = check_new,
		.child_fn = has_old,
	};

	race(_metadata, self, &args);
}

struct reader {
	struct _test_data_cow_copy *self;
	int cpu;
	int step;
	size_t bad;
};

/* Not by sleeping: the CPU shall keep what it has in its TLB. */
static void wait_for_step(struct reader *reader, int step)
{
	while (__atomic_load_n(&reader->step, __ATOMIC_ACQUIRE) < step)
		;
}

static void next_step(struct reader *reader)
{
	__atomic_add_fetch(&reader->step, 1, __ATOMIC_RELEASE);
}

static void *read_old_and_new(void *arg)
{
	struct reader *reader = arg;

	run_on(reader->cpu);
	reader->bad += mismatches(reader->self, 0, reader->self->nr, OLD);
	next_step(reader);
	wait_for_step(reader, 2);
	reader->bad += mismatches(reader->self, 0, reader->self->nr, NEW);
	return NULL;
}

/* No CPU reads from the old folio any more, not even where it has just read it. */
TEST_F_TIMEOUT(cow_copy, other_cpu_reads, TIMEOUT)
{
	struct reader reader = { .self = self };
	cpu_set_t cpus;
	struct child child;
	pthread_t thread;
	int cpu = 0;

	ASSERT_EQ(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
	if (CPU_COUNT(&cpus) < 2)
		SKIP(return, "needs two CPUs");
	while (!CPU_ISSET(cpu, &cpus))
		cpu++;
	run_on(cpu++);
	while (!CPU_ISSET(cpu, &cpus))
		cpu++;
	reader.cpu = cpu;

	child_start(_metadata, self, &child, nothing, has_old);
	ASSERT_EQ(pthread_create(&thread, NULL, read_old_and_new, &reader), 0);
	wait_for_step(&reader, 1);
	store_ascending(self, NEW);
	next_step(&reader);
	ASSERT_EQ(pthread_join(thread, NULL), 0);
	EXPECT_EQ(reader.bad, 0);
	expect_copies(_metadata, self, &child);
}

static void end_child(struct race *race)
{
	char c = 0;

	race->bad += write(race->child.go, &c, 1) != 1;
}

static void store_each(struct race *race)
{
	fill(race->self->mem, 0, race->self->nr, NEW);
}

/* The folio becomes exclusive while a block is copied. */
TEST_F_TIMEOUT(cow_copy, race_with_exit, TIMEOUT)
{
	struct race args = {
		.first = store_each,
		.second = end_child,
		.check = check_new,
		.child_fn = nothing,
		.child_told = true,
	};

	race(_metadata, self, &args);
}

/* A page that is gone does not come back with the copy. */
static void zap_j(struct race *race)
{
	char *page = race->self->mem + race->self->j * psize();

	race->bad += madvise(page, psize(), MADV_DONTNEED) != 0;
	race->bad += get(race->self->mem, race->self->j) != 0;
}

static void check_zapped(struct race *race)
{
	race->self->special[race->self->j] = true;
	check_new(race);
	race->self->special[race->self->j] = false;
	race->bad += get(race->self->mem, race->self->j) != 0;
}

TEST_F_TIMEOUT(cow_copy, race_with_zap, TIMEOUT)
{
	struct race args = {
		.first = store_all_but_j,
		.second = zap_j,
		.check = check_zapped,
		.child_fn = has_old,
	};

	race(_metadata, self, &args);
}

/* A page that is pinned meanwhile stays the one that is mapped. */
static void pin_j(struct race *race)
{
	race->bad += !pin(race->fd, race->self->mem + race->self->j * psize(),
			  psize(), 0);
}

static void check_pinned(struct race *race)
{
	__u64 page[psize() / sizeof(__u64)];
	__u64 addr = (uintptr_t)page;

	put(race->self->mem, race->self->j, NEW + race->self->j);
	check_new(race);
	race->bad += ioctl(race->fd, PIN_LONGTERM_TEST_READ, &addr) != 0;
	race->bad += page[0] != NEW + race->self->j;
	race->bad += ioctl(race->fd, PIN_LONGTERM_TEST_STOP) != 0;
}

TEST_F_TIMEOUT(cow_copy, race_with_pin, TIMEOUT)
{
	struct race args = {
		.first = store_all_but_j,
		.second = pin_j,
		.check = check_pinned,
		.child_fn = has_old,
		.fd = open(GUP_TEST_FILE, O_RDWR),
	};

	if (args.fd < 0)
		SKIP(return, "no gup_test");
	race(_metadata, self, &args);
	close(args.fd);
}

/* The same when the folio has become exclusive before: the page is pinned in place. */
static void end_child_and_pin_j(struct race *race)
{
	siginfo_t info;

	end_child(race);
	race->bad += waitid(P_PID, race->child.pid, &info, WEXITED | WNOWAIT) != 0;
	pin_j(race);
}

TEST_F_TIMEOUT(cow_copy, race_with_exit_and_pin, TIMEOUT)
{
	struct race args = {
		.first = store_all_but_j,
		.second = end_child_and_pin_j,
		.check = check_pinned,
		.child_fn = nothing,
		.child_told = true,
		.fd = open(GUP_TEST_FILE, O_RDWR),
	};

	if (args.fd < 0)
		SKIP(return, "no gup_test");
	race(_metadata, self, &args);
	close(args.fd);
}

/* What another child has got at fork() does not change. */
static int sees_no_change(struct _test_data_cow_copy *self)
{
	static __u64 seen[MAX_PAGES];
	int bad = 0;

	for (size_t i = 0; i < self->nr; i++) {
		seen[i] = get(self->mem, i);
		bad |= seen[i] != OLD + i && seen[i] != NEW + i;
	}
	usleep(500);
	for (size_t i = 0; i < self->nr; i++)
		bad |= get(self->mem, i) != seen[i];
	return bad;
}

static void fork_again(struct race *race)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(sees_no_change(race->self));
	race->bad += waitpid(pid, &status, 0) != pid || status;
}

TEST_F_TIMEOUT(cow_copy, race_with_fork, TIMEOUT)
{
	struct race args = {
		.first = store_each,
		.second = fork_again,
		.check = check_new,
		.child_fn = has_old,
	};

	race(_metadata, self, &args);
}

/*
 * The debugfs files
 */

TEST(policy_choices)
{
	static const char * const choices[] = { "never", "adaptive", "always" };
	char active[16];

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
		set_policy(choices[i]);
		read_setting(POLICY_FILE, active, sizeof(active));
		EXPECT_STREQ(active, choices[i]);
	}
}

static void expect_invalid(struct __test_metadata *_metadata, const char *path,
			   const char *input)
{
	char before[32], after[32];

	read_setting(path, before, sizeof(before));
	EXPECT_FALSE(try_set(path, input)) TH_LOG("input: %s", input);
	EXPECT_EQ(errno, EINVAL) TH_LOG("input: %s", input);
	read_setting(path, after, sizeof(after));
	EXPECT_STREQ(before, after) TH_LOG("input: %s", input);
}

TEST(policy_wrong_input)
{
	static const char * const wrong[] = {
		"none", "adapt", "Never", "always!", "1", "always or adaptive"
	};

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		expect_invalid(_metadata, POLICY_FILE, wrong[i]);
}

/* Each power of two from a page to half of what a page table maps. */
TEST(max_bytes_choices)
{
	unsigned long pmd = read_pmd_pagesize();
	char input[32], active[32];

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (unsigned long bytes = psize(); bytes <= pmd / 2; bytes *= 2) {
		snprintf(input, sizeof(input), "%lu", bytes);
		write_setting(MAX_BYTES_FILE, input);
		read_setting(MAX_BYTES_FILE, active, sizeof(active));
		EXPECT_STREQ(active, input);
	}
}

TEST(max_bytes_wrong_input)
{
	unsigned long pmd = read_pmd_pagesize();
	const unsigned long wrong[] = { 0, 1, psize() / 2, psize() - 1, 3 * psize(), pmd };
	static const char * const text[] = {
		"big", "-65536", "65536K", "65536 65536", "18446744073709617152",
		"0000000000000000000000000000000065536"
	};
	char input[32];

	if (!has_policy())
		SKIP(return, "no %s", POLICY_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		snprintf(input, sizeof(input), "%lu", wrong[i]);
		expect_invalid(_metadata, MAX_BYTES_FILE, input);
	}
	for (size_t i = 0; i < ARRAY_SIZE(text); i++)
		expect_invalid(_metadata, MAX_BYTES_FILE, text[i]);
}

static void restore(void)
{
	restore_settings(settings, ARRAY_SIZE(settings));
}

int main(int argc, char **argv)
{
	/* Here, so that they are restored even if a test is killed. */
	if (!geteuid()) {
		thp_save_settings();
		save_settings(settings, ARRAY_SIZE(settings));
		atexit(restore);
		if (thp_available())
			stop_khugepaged(ORDERS);
	}
	return test_harness_run(argc, argv);
}
