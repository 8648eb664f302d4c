// SPDX-License-Identifier: GPL-2.0
/*
 * Write faults on large folios that nobody else maps any more, and that are only
 * mapped in part.
 *
 * What is not mapped stays allocated as long as one page of the folio is in use.
 * If only a small share of it is, a write fault may copy what is left, so that the
 * folio can go. Without the debugfs file that sets the share, that is done with
 * the very last page only, as older kernels do: tests of correctness run there as
 * well, and those of memory tell how much it is there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "cow_util.h"

#define KEEP_FILE	"/sys/kernel/debug/cow/keep_min_percent"
#define POLICY_FILE	"/sys/kernel/debug/cow/copy"
#define MAX_BYTES_FILE	"/sys/kernel/debug/cow/copy_max_bytes"

/* Orders of blocks that are copied, if nothing else is allowed: up to 16 pages. */
#define MIN_ORDER	2
#define MAX_ORDER	4
#define ORDERS		((2UL << MAX_ORDER) - (1UL << MIN_ORDER))

/* Of the memory of the machine, the tests of memory use this part at most. */
#define MAX_AREA	(64UL << 20)
#define AREA_PART	16
#define MAX_SIZE	(2UL << 20)	/* of a folio */

FIXTURE(cow_last_page)
{
	char *area;		/* address space that is reserved for the test */
	size_t area_size;
	char *mem;		/* a PMD boundary inside; where folios are mapped */
	size_t nr;		/* pages that are mapped there */
	size_t folio_nr;	/* pages of one folio */
	size_t size;		/* bytes of one folio */
	size_t percent;		/* the share that has to be mapped to keep a folio */
	int pagemap_fd;
	int kpageflags_fd;
};

FIXTURE_VARIANT(cow_last_page)
{
	size_t size;
};

FIXTURE_VARIANT_ADD(cow_last_page, 16K) { .size = 16 << 10, };
FIXTURE_VARIANT_ADD(cow_last_page, 64K) { .size = 64 << 10, };
FIXTURE_VARIANT_ADD(cow_last_page, 1M) { .size = 1 << 20, };
FIXTURE_VARIANT_ADD(cow_last_page, 2M) { .size = 2 << 20, };

/* Files with settings of the whole system, restored in the end. */
static struct setting settings[] = {
	{ KEEP_FILE },
	{ POLICY_FILE },
	{ MAX_BYTES_FILE },
};

static void restore(void)
{
	restore_settings(settings, ARRAY_SIZE(settings));
}

static bool has_keep(void)
{
	return !access(KEEP_FILE, W_OK);
}

static void set_number(const char *path, unsigned long value)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%lu", value);
	if (!access(path, W_OK))
		write_setting(path, buf);
}

static void set_policy(const char *policy)
{
	if (!access(POLICY_FILE, W_OK))
		write_setting(POLICY_FILE, policy);
}

/* Kernels that have no such share keep a folio for two pages. */
static void set_keep(struct _test_data_cow_last_page *self, size_t percent)
{
	self->percent = has_keep() ? percent : 0;
	set_number(KEEP_FILE, self->percent);
}

static size_t number_in(const char *path)
{
	char buf[32];

	return read_file(path, buf, sizeof(buf)) ? strtoul(buf, NULL, 10) : 0;
}

/* Is a folio given back if @left pages of it are mapped, and one is written to? */
static bool given_back(struct _test_data_cow_last_page *self, size_t left)
{
	return left == 1 || 100 * left < self->percent * self->folio_nr;
}

/* Page tables and folios */

static unsigned long pfn_of(struct _test_data_cow_last_page *self, size_t page)
{
	return pagemap_get_pfn(self->pagemap_fd, self->mem + page * psize());
}

static int order_from(struct _test_data_cow_last_page *self, size_t page)
{
	return mapped_order(self->pagemap_fd, self->kpageflags_fd, self->mem, page,
			    self->nr);
}

static void reopen_pagemap(struct _test_data_cow_last_page *self)
{
	close(self->pagemap_fd);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
}

static size_t mismatches(struct _test_data_cow_last_page *self, size_t from, size_t to,
			 __u64 base)
{
	size_t bad = 0;

	for (size_t i = from; i < to; i++)
		bad += get(self->mem, i) != base + i;
	return bad;
}

/* Map @nr folios, all by PTEs, in place of what was there. False if one is not so. */
static bool try_map_folios(struct _test_data_cow_last_page *self, size_t nr)
{
	const int order = sz2ord(self->size, psize());
	char *map;

	self->nr = nr * self->folio_nr;
	map = mmap(self->mem, self->nr * psize(), PROT_READ | PROT_WRITE,
		   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map != self->mem)
		return false;
	enable_orders(1UL << order, "always");
	for (size_t i = 0; i < self->nr; i += self->folio_nr) {
		put(self->mem, i, OLD + i);
		if (!map_by_ptes(self->mem + i * psize(), self->size) ||
		    order_from(self, i) != order)
			return false;
	}
	enable_orders(ORDERS, "always");
	fill(self->mem, 0, self->nr, OLD);
	return true;
}

static bool map_folios(struct _test_data_cow_last_page *self, size_t nr)
{
	for (int tries = 0; tries < 3; tries++) {
		if (try_map_folios(self, nr))
			return true;
		munmap(self->mem, self->nr * psize());
		defragment();
	}
	return false;
}

/* Children */

typedef int (*child_fn)(struct _test_data_cow_last_page *self);

static int has_old(struct _test_data_cow_last_page *self)
{
	return !!mismatches(self, 0, self->nr, OLD);
}

/* Fork a child that has the old content until it is told to finish. */
static void child_start(struct __test_metadata *_metadata,
			struct _test_data_cow_last_page *self, struct child *child)
{
	if (!child_fork(_metadata, child)) {
		child_pause(child);
		_exit(has_old(self) ? 4 : 0);
	}
	child_started(_metadata, child);
}

/* Have a folio with @left pages, the first ones, all of which still fault. */
static void leave(struct __test_metadata *_metadata,
		  struct _test_data_cow_last_page *self, size_t left)
{
	struct child child;

	ASSERT_TRUE(map_folios(self, 1));
	child_start(_metadata, self, &child);
	set_policy("never");
	fill(self->mem, left, self->nr, NEW);
	child_finish(_metadata, &child);
	set_policy("adaptive");
}

/* Store to all pages of before; nothing may be lost then. */
static void expect_content(struct __test_metadata *_metadata,
			   struct _test_data_cow_last_page *self, size_t left)
{
	fill(self->mem, 0, left, NEW);
	EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), self->nr * psize());
}

/* A store to the first page of @left copies it, or does not. */
static void expect_copied(struct __test_metadata *_metadata,
			  struct _test_data_cow_last_page *self, size_t left,
			  bool copied)
{
	unsigned long pfn = pfn_of(self, 0);

	EXPECT_EQ(store_faults(self->mem, 0, NEW), 1);
	EXPECT_EQ(pfn_of(self, 0) != pfn, copied)
		TH_LOG("%zu of %zu pages are left, %zu %% have to be", left,
		       self->folio_nr, self->percent);
}

static const char *unsupported(size_t size)
{
	const char *reason = unsupported_size(size);

	if (!reason && !has_keep() && !access(POLICY_FILE, F_OK))
		return "cannot test without " KEEP_FILE;
	return reason;
}

static void choose_addresses(struct __test_metadata *_metadata,
			     struct _test_data_cow_last_page *self)
{
	size_t pmd = read_pmd_pagesize();

	ASSERT_NE(pmd, 0);
	self->area_size = MAX_AREA + 2 * pmd;
	self->area = reserve_area(_metadata, self->area_size);
	self->mem = next_pmd(self->area, pmd);
}

FIXTURE_SETUP(cow_last_page)
{
	const char *reason = unsupported(variant->size);

	self->area = MAP_FAILED;
	if (reason)
		SKIP(return, "%s", reason);
	/* Tests of memory are about the share that is the default. */
	restore();
	self->size = variant->size;
	self->folio_nr = variant->size / psize();
	self->percent = number_in(KEEP_FILE);
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ASSERT_GE(self->pagemap_fd, 0);
	self->kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	ASSERT_GE(self->kpageflags_fd, 0);
	choose_addresses(_metadata, self);
	set_number(MAX_BYTES_FILE, psize() << MAX_ORDER);
	set_policy("adaptive");
}

FIXTURE_TEARDOWN(cow_last_page)
{
	if (self->area == MAP_FAILED)
		return;
	munmap(self->area, self->area_size);
	close(self->pagemap_fd);
	close(self->kpageflags_fd);
}

/*
 * Memory: what a process takes that writes all of its memory, has a child, and
 * writes it again
 */

struct usage {
	long charged;	/* to the cgroup; the only exact one */
	long available;	/* in the system */
	long anon;	/* mapped, in the system */
};

/* A field in kB of /proc/meminfo, in bytes. */
static long system_bytes(const char *field)
{
	unsigned long value;
	char buf[256];
	FILE *fp = fopen("/proc/meminfo", "r");

	if (!fp || !check_for_pattern(fp, field, buf, sizeof(buf)) ||
	    sscanf(buf + strlen(field), "%20lu", &value) != 1)
		ksft_exit_fail_perror("/proc/meminfo");
	fclose(fp);
	return value << 10;
}

/* Pages that CPUs have in stock are free, but MemAvailable does not count them. */
static long stock_of_cpus(void)
{
	unsigned long pages = 0, nr;
	char line[256];
	FILE *fp = fopen("/proc/zoneinfo", "r");

	if (!fp)
		ksft_exit_fail_perror("/proc/zoneinfo");
	while (fgets(line, sizeof(line), fp))
		if (sscanf(line, " count: %20lu", &nr) == 1)
			pages += nr;
	fclose(fp);
	return pages * psize();
}

static struct usage read_usage(void)
{
	return (struct usage) {
		.charged = number_in(CGROUP "/memory.current"),
		.available = system_bytes("MemAvailable:") + stock_of_cpus(),
		.anon = system_bytes("AnonPages:"),
	};
}

static long distance(long a, long b)
{
	return labs(a - b);
}

/* What a CPU may have charged to a cgroup in advance (MEMCG_CHARGE_BATCH). */
static long charged_in_advance(void)
{
	return 64 * psize();
}

/*
 * Join a new cgroup, on one CPU: others would charge in advance, too. Return why
 * that cannot be done.
 */
static const char *enter_cgroup_on_one_cpu(void)
{
	run_on(sched_getcpu());
	return enter_cgroup();
}

/*
 * Expect that @extra bytes more are in use than before, all of them in folios that
 * are mapped in part. The rest of the system does not stand still.
 */
static void expect_used(struct __test_metadata *_metadata,
			struct _test_data_cow_last_page *self,
			const struct usage *before, const struct usage *now, long extra)
{
	const long size = self->nr * psize();
	const long used = before->available - now->available;

	TH_LOG("%ld KiB, rewritten, take %ld KiB more (expected: %ld KiB)", size >> 10,
	       (now->charged - before->charged) >> 10, extra >> 10);
	EXPECT_LT(distance(now->charged - before->charged, extra),
		  size / 64 + charged_in_advance());
	EXPECT_LT(distance(used, extra), size / 4) TH_LOG("available: %ld less", used);
	EXPECT_LT(distance(now->anon, before->anon), size / 8)
		TH_LOG("AnonPages: %ld before, %ld now", before->anon, now->anon);
}

/* Which pages are written to: the mapping has @nr, and folios have @folio_nr. */
typedef bool (*page_fn)(size_t page, size_t folio_nr, size_t nr);

static bool no_page(size_t page, size_t folio_nr, size_t nr)
{
	return false;
}

static bool every_page(size_t page, size_t folio_nr, size_t nr)
{
	return true;
}

static bool every_16th(size_t page, size_t folio_nr, size_t nr)
{
	return page % 16 == 0;
}

static bool all_but_every_16th(size_t page, size_t folio_nr, size_t nr)
{
	return page % 16 != 0;
}

static bool quarter_of_folio(size_t page, size_t folio_nr, size_t nr)
{
	return 4 * (page % folio_nr) < folio_nr;
}

static bool half_of_folio(size_t page, size_t folio_nr, size_t nr)
{
	return 2 * (page % folio_nr) < folio_nr;
}

static bool fifteen_16ths_of_folio(size_t page, size_t folio_nr, size_t nr)
{
	return page % folio_nr < folio_nr - (folio_nr + 15) / 16;
}

static bool quarter_of_all(size_t page, size_t folio_nr, size_t nr)
{
	return 4 * page < nr;
}

static bool half_of_all(size_t page, size_t folio_nr, size_t nr)
{
	return 2 * page < nr;
}

static bool fifteen_16ths_of_all(size_t page, size_t folio_nr, size_t nr)
{
	return 16 * page < 15 * nr;
}

static void rewrite(struct _test_data_cow_last_page *self, page_fn written)
{
	for (size_t i = 0; i < self->nr; i++)
		if (written(i, self->folio_nr, self->nr))
			put(self->mem, i, NEW + i);
}

/* Pages without @early ones that stay allocated, if the others are written to. */
static size_t pages_kept(struct _test_data_cow_last_page *self, size_t first,
			 page_fn early)
{
	size_t left = 0;

	for (size_t i = first; i < first + self->folio_nr; i++)
		left += !early(i, self->folio_nr, self->nr);
	return !left || given_back(self, left) ? 0 : self->folio_nr - left;
}

/* The same for all folios, in bytes. */
static long bytes_kept(struct _test_data_cow_last_page *self, page_fn early)
{
	size_t kept = 0;

	for (size_t i = 0; i < self->nr; i += self->folio_nr)
		kept += pages_kept(self, i, early);
	return kept * psize();
}

/* Number of pages that were not written to, or that have lost what was. */
static size_t lost_pages(struct _test_data_cow_last_page *self, page_fn early,
			 page_fn late)
{
	size_t bad = 0;

	for (size_t i = 0; i < self->nr; i++) {
		bool written = early(i, self->folio_nr, self->nr) ||
			       late(i, self->folio_nr, self->nr);

		bad += get(self->mem, i) != (written ? NEW : OLD) + i;
	}
	return bad;
}

/* The folios of the tests of memory. */
static size_t nr_folios(struct _test_data_cow_last_page *self)
{
	size_t size = system_bytes("MemAvailable:") / AREA_PART;

	size = size < MAX_AREA ? size : MAX_AREA;
	/* A PMD of large base pages maps more than that. */
	return (size & ~(MAX_SIZE - 1)) / self->size;
}

/*
 * Rewrite @early pages while the child is there, copying by @policy, and @late ones
 * when it is gone; expect @extra bytes to be in use then that were not before.
 */
static void expect_rewritten(struct __test_metadata *_metadata,
			     struct _test_data_cow_last_page *self,
			     const char *policy, page_fn early, page_fn late,
			     long (*extra)(struct _test_data_cow_last_page *self,
					   page_fn early))
{
	const char *reason = enter_cgroup_on_one_cpu();
	struct usage before, now;
	struct child child;

	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_TRUE(map_folios(self, nr_folios(self)));
	before = read_usage();
	child_start(_metadata, self, &child);
	set_policy(policy);
	rewrite(self, early);
	child_finish(_metadata, &child);
	set_policy("adaptive");
	rewrite(self, late);
	now = read_usage();

	expect_used(_metadata, self, &before, &now, extra(self, early));
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), self->nr * psize());
	EXPECT_EQ(lost_pages(self, early, late), 0);
	leave_cgroup();
}

TEST_F_TIMEOUT(cow_last_page, child_exits_first, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", no_page, every_page, bytes_kept);
}

TEST_F_TIMEOUT(cow_last_page, child_exits_first_every_16th, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", no_page, every_16th, bytes_kept);
}

/* It exits when so much of each folio is rewritten ... */
TEST_F_TIMEOUT(cow_last_page, child_exits_at_quarter, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", quarter_of_folio, every_page,
			 bytes_kept);
}

TEST_F_TIMEOUT(cow_last_page, child_exits_at_half, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", half_of_folio, every_page,
			 bytes_kept);
}

TEST_F_TIMEOUT(cow_last_page, child_exits_at_15_of_16, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", fifteen_16ths_of_folio, every_page,
			 bytes_kept);
}

TEST_F_TIMEOUT(cow_last_page, every_16th_is_left, TIMEOUT)
{
	expect_rewritten(_metadata, self, "never", all_but_every_16th, every_16th,
			 bytes_kept);
}

static long nothing_kept(struct _test_data_cow_last_page *self, page_fn early)
{
	return 0;
}

/*
 * ... or of the whole mapping, from its start to its end: at most one folio is mapped
 * in part.
 */
TEST_F_TIMEOUT(cow_last_page, memset_child_exits_at_quarter, TIMEOUT)
{
	expect_rewritten(_metadata, self, "adaptive", quarter_of_all, every_page,
			 nothing_kept);
}

TEST_F_TIMEOUT(cow_last_page, memset_child_exits_at_half, TIMEOUT)
{
	expect_rewritten(_metadata, self, "adaptive", half_of_all, every_page,
			 nothing_kept);
}

TEST_F_TIMEOUT(cow_last_page, memset_child_exits_at_15_of_16, TIMEOUT)
{
	expect_rewritten(_metadata, self, "adaptive", fifteen_16ths_of_all, every_page,
			 nothing_kept);
}

/* What the processes without the test tell it. */
struct shared {
	struct usage before;
	struct usage now;
	long rss;
	size_t nr;
	size_t lost;
	bool done;
};

/* Rewrite @early pages, let the parent exit, and rewrite all when it is gone. */
static void child_goes_on(struct _test_data_cow_last_page *self, struct shared *shared,
			  page_fn early, const struct child *parent, int early_fd)
{
	rewrite(self, early);
	close(early_fd);
	child_pause(parent);
	set_policy("adaptive");
	rewrite(self, every_page);
	shared->now = read_usage();
	shared->rss = smaps_bytes(self->mem, "Rss:");
	shared->lost = lost_pages(self, early, every_page);
	shared->done = true;
	_exit(0);
}

/* Have a child, and exit when it has rewritten @early pages. */
static void parent_exits(struct _test_data_cow_last_page *self, struct shared *shared,
			 page_fn early, const struct child *parent)
{
	int fds[2];
	char c;

	reopen_pagemap(self);
	if (!map_folios(self, nr_folios(self)) || pipe(fds))
		_exit(1);
	shared->nr = self->nr;
	shared->before = read_usage();
	set_policy("never");
	switch (fork()) {
	case -1:
		_exit(2);
	case 0:
		close(fds[0]);
		child_goes_on(self, shared, early, parent, fds[1]);
	}
	close(fds[1]);
	_exit(read(fds[0], &c, 1) ? 3 : 0);
}

static void expect_child_goes_on(struct __test_metadata *_metadata,
				 struct _test_data_cow_last_page *self, page_fn early)
{
	const char *reason = enter_cgroup_on_one_cpu();
	struct shared *shared;
	struct child parent;
	char go = 0;

	if (reason)
		SKIP(return, "%s", reason);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(shared, MAP_FAILED);
	/* The child of the parent that exits becomes ours. */
	ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	if (!child_fork(_metadata, &parent))
		parent_exits(self, shared, early, &parent);
	expect_exit(_metadata, parent.pid);
	child_started(_metadata, &parent);
	ASSERT_EQ(write(parent.go, &go, 1), 1);
	ASSERT_GT(wait(NULL), 0);
	ASSERT_TRUE(shared->done);

	self->nr = shared->nr;
	expect_used(_metadata, self, &shared->before, &shared->now,
		    bytes_kept(self, early));
	EXPECT_EQ(shared->rss, self->nr * psize());
	EXPECT_EQ(shared->lost, 0);
	leave_cgroup();
}

TEST_F_TIMEOUT(cow_last_page, parent_exits_first, TIMEOUT)
{
	expect_child_goes_on(_metadata, self, no_page);
}

TEST_F_TIMEOUT(cow_last_page, parent_exits_at_half, TIMEOUT)
{
	expect_child_goes_on(_metadata, self, half_of_folio);
}

TEST_F_TIMEOUT(cow_last_page, parent_exits_at_15_of_16, TIMEOUT)
{
	expect_child_goes_on(_metadata, self, fifteen_16ths_of_folio);
}

/* A process that gives pages back itself: then it writes to one that is left. */
TEST_F_TIMEOUT(cow_last_page, unmapped_after_fork, TIMEOUT)
{
	size_t left = (self->folio_nr + 15) / 16;

	ASSERT_TRUE(map_folios(self, 1));
	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem + left * psize(), self->size - left * psize(),
			  MADV_DONTNEED), 0);
	expect_copied(_metadata, self, left, given_back(self, left));
	fill(self->mem, 0, left, NEW);
	EXPECT_EQ(mismatches(self, 0, left, NEW), 0);
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), left * psize());
}

/*
 * Shares
 */

/* Exactly the share that is set is enough to keep the folio. */
static void expect_share(struct __test_metadata *_metadata,
			 struct _test_data_cow_last_page *self, size_t percent)
{
	const size_t enough = (percent * self->folio_nr + 99) / 100;
	const size_t lefts[] = { 1, 2, enough - 1, enough, self->folio_nr - 1 };

	set_keep(self, percent);
	for (size_t i = 0; i < ARRAY_SIZE(lefts); i++) {
		size_t left = lefts[i];

		if (!left || left >= self->folio_nr)
			continue;
		leave(_metadata, self, left);
		expect_copied(_metadata, self, left, given_back(self, left));
		expect_content(_metadata, self, left);
	}
}

TEST_F_TIMEOUT(cow_last_page, share_0, TIMEOUT)
{
	expect_share(_metadata, self, 0);
}

TEST_F_TIMEOUT(cow_last_page, share_6, TIMEOUT)
{
	expect_share(_metadata, self, 6);
}

TEST_F_TIMEOUT(cow_last_page, share_25, TIMEOUT)
{
	expect_share(_metadata, self, 25);
}

TEST_F_TIMEOUT(cow_last_page, share_50, TIMEOUT)
{
	expect_share(_metadata, self, 50);
}

TEST_F_TIMEOUT(cow_last_page, share_100, TIMEOUT)
{
	expect_share(_metadata, self, 100);
}

/* The tracepoint tells of what is left and copied. */
TEST_F_TIMEOUT(cow_last_page, traced_last, TIMEOUT)
{
	if (!has_keep() || !trace_start())
		SKIP(return, "no tracepoint cow_fault");
	set_keep(self, 100);
	/* Two at least: a copy of the last page is an ordinary one. */
	leave(_metadata, self, self->folio_nr / 2);
	EXPECT_EQ(traced("action=copy"), 0);
	expect_copied(_metadata, self, self->folio_nr / 2, true);
	EXPECT_EQ(traced("address=%p order=%d action=copy reason=last", self->mem,
			 sz2ord(self->size, psize())), 1);
	trace_stop();
}

/* All of a folio is never too little. */
TEST_F_TIMEOUT(cow_last_page, whole_folio, TIMEOUT)
{
	set_keep(self, 100);
	ASSERT_TRUE(map_folios(self, 1));
	share_once(_metadata);
	expect_copied(_metadata, self, self->folio_nr, false);
	expect_content(_metadata, self, self->folio_nr);
}

/* It may be mapped in two places: both count. */
TEST_F_TIMEOUT(cow_last_page, half_moved, TIMEOUT)
{
	const size_t half = self->folio_nr / 2;
	char *to = self->mem + 2 * read_pmd_pagesize();

	set_keep(self, 75);
	ASSERT_TRUE(map_folios(self, 1));
	share_once(_metadata);
	move(_metadata, self->mem + half * psize(), half * psize(), to);
	expect_copied(_metadata, self, self->folio_nr, false);
	EXPECT_EQ(get(to, 0), OLD + half);
}

/*
 * Blocks
 */

/* Of half a folio, as much is copied as a block of @order has, or a page. */
static void expect_block(struct __test_metadata *_metadata,
			 struct _test_data_cow_last_page *self, const char *policy,
			 int order)
{
	const size_t left = self->folio_nr / 2;
	size_t nr = left < 1UL << order ? 1 : 1UL << order;
	long faults = 0;

	if (!has_keep())
		SKIP(return, "no %s", KEEP_FILE);
	set_keep(self, 100);
	leave(_metadata, self, left);
	set_policy(policy);
	expect_copied(_metadata, self, left, true);
	EXPECT_EQ(order_from(self, 0), nr == 1 ? 0 : order);
	for (size_t i = 1; i < nr; i++)
		faults += store_faults(self->mem, i, NEW + i);
	EXPECT_EQ(faults, 0);
	if (left > nr)
		EXPECT_EQ(store_faults(self->mem, nr, NEW + nr), 1);
	expect_content(_metadata, self, left);
}

TEST_F_TIMEOUT(cow_last_page, block, TIMEOUT)
{
	int order = self->folio_nr / 2 < 1UL << MAX_ORDER ? 3 : MAX_ORDER;

	expect_block(_metadata, self, "adaptive", order);
}

TEST_F_TIMEOUT(cow_last_page, block_max_bytes, TIMEOUT)
{
	set_number(MAX_BYTES_FILE, psize() << MIN_ORDER);
	expect_block(_metadata, self, "always", MIN_ORDER);
}

/* Blocks are copied only if they are at all. */
TEST_F_TIMEOUT(cow_last_page, block_never, TIMEOUT)
{
	expect_block(_metadata, self, "never", 0);
}

/* The pages of a block that are not left are not read. */
TEST_F_TIMEOUT(cow_last_page, block_with_hole, TIMEOUT)
{
	size_t hole = self->folio_nr / 2 - 1;

	set_keep(self, 100);
	ASSERT_TRUE(map_folios(self, 1));
	share_once(_metadata);
	ASSERT_EQ(madvise(self->mem + hole * psize(), psize(), MADV_DONTNEED), 0);
	expect_copied(_metadata, self, self->folio_nr - 1,
		      given_back(self, self->folio_nr - 1));
	for (size_t i = 0; i < self->folio_nr; i++)
		EXPECT_EQ(get(self->mem, i), !i ? NEW : i == hole ? 0 : OLD + i);
}

/*
 * Who is not concerned: half of the folio is left, more would have to be
 */

/* As long as a child maps it, too: then, evidence decides about blocks. */
TEST_F_TIMEOUT(cow_last_page, still_shared, TIMEOUT)
{
	const size_t left = self->folio_nr / 4;
	struct child child;

	set_keep(self, 100);
	ASSERT_TRUE(map_folios(self, 1));
	ASSERT_EQ(madvise(self->mem + left * psize(), self->size - left * psize(),
			  MADV_DONTNEED), 0);
	if (!child_fork(_metadata, &child)) {
		child_pause(&child);
		_exit(mismatches(self, 0, left, OLD) ? 4 : 0);
	}
	child_started(_metadata, &child);
	expect_copied(_metadata, self, left, true);
	EXPECT_EQ(order_from(self, 0), 0);
	child_finish(_metadata, &child);
	fill(self->mem, 0, left, NEW);
	EXPECT_EQ(mismatches(self, 0, left, NEW), 0);
}

TEST_F_TIMEOUT(cow_last_page, forced_write, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	const __u64 value = NEW;
	unsigned long pfn;
	int fd;

	set_keep(self, 100);
	leave(_metadata, self, left);
	pfn = pfn_of(self, 0);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ), 0);
	fd = open("/proc/self/mem", O_RDWR);
	ASSERT_GE(fd, 0);
	ASSERT_EQ(pwrite(fd, &value, sizeof(value), (uintptr_t)self->mem), sizeof(value));
	close(fd);
	EXPECT_EQ(pfn_of(self, 0), pfn);
	expect_segv(_metadata, self->mem, 0, self->nr);
	ASSERT_EQ(mprotect(self->mem, self->size, PROT_READ | PROT_WRITE), 0);
	expect_content(_metadata, self, left);
}

TEST_F_TIMEOUT(cow_last_page, uffd_wp, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	int uffd = uffd_open(UFFD_FEATURE_PAGEFAULT_FLAG_WP);

	if (uffd < 0)
		SKIP(return, "no userfaultfd");
	set_keep(self, 100);
	leave(_metadata, self, left);
	if (uffd_register(uffd, self->mem, self->size, false, true, false))
		SKIP(return, "no userfaultfd-wp");
	expect_copied(_metadata, self, left, false);
	close(uffd);
	expect_content(_metadata, self, left);
}

TEST_F_TIMEOUT(cow_last_page, soft_dirty, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;

	if (!softdirty_supported())
		SKIP(return, "no soft-dirty tracking");
	set_keep(self, 100);
	leave(_metadata, self, left);
	clear_softdirty();
	expect_copied(_metadata, self, left, false);
	EXPECT_EQ(count_pages_with(self->pagemap_fd, self->mem + psize(), left - 1,
				   (bool [512]) {}, PM_SOFT_DIRTY), 0);
	expect_content(_metadata, self, left);
}

/* A page that is pinned for reading is the one that is mapped. */
TEST_F_TIMEOUT(cow_last_page, unshare, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	int fd = open(GUP_TEST_FILE, O_RDWR);
	unsigned long pfn;

	if (fd < 0)
		SKIP(return, "no gup_test");
	set_keep(self, 100);
	leave(_metadata, self, left);
	pfn = pfn_of(self, 0);
	ASSERT_TRUE(pin(fd, self->mem, psize(), 0));
	EXPECT_EQ(pfn_of(self, 0), pfn);
	put(self->mem, 0, NEW);
	EXPECT_EQ(read_pin(_metadata, fd), NEW);
	ioctl(fd, PIN_LONGTERM_TEST_STOP);
	close(fd);
	expect_content(_metadata, self, left);
}

/* Who reads a page later reads what was there: the folio is not exclusive. */
TEST_F_TIMEOUT(cow_last_page, referenced, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	struct iovec iov = { self->mem + psize(), sizeof(__u64) };
	__u64 value = 0;
	int fds[2];

	ASSERT_EQ(pipe(fds), 0);
	set_keep(self, 100);
	leave(_metadata, self, left);
	ASSERT_EQ(vmsplice(fds[1], &iov, 1, 0), sizeof(__u64));
	expect_copied(_metadata, self, left, true);
	EXPECT_EQ(order_from(self, 0), 0);
	put(self->mem, 1, NEW + 1);
	ASSERT_EQ(read(fds[0], &value, sizeof(value)), sizeof(value));
	EXPECT_EQ(value, OLD + 1);
	close(fds[0]);
	close(fds[1]);
	expect_content(_metadata, self, left);
}

/*
 * Failures
 */

/* There is no memory at all: the page is there already. */
TEST_F_TIMEOUT(cow_last_page, alloc_fails, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	unsigned long pfn;

	set_keep(self, 100);
	leave(_metadata, self, left);
	pfn = pfn_of(self, 0);
	if (!fail_allocations(0))
		SKIP(return, "no fault injection for page allocation");
	put(self->mem, 0, NEW);
	fail_no_allocations();
	EXPECT_EQ(pfn_of(self, 0), pfn);
	expect_content(_metadata, self, left);
}

/* There is none for a block. */
TEST_F_TIMEOUT(cow_last_page, alloc_fails_large, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	unsigned long pfn;

	set_keep(self, 100);
	leave(_metadata, self, left);
	pfn = pfn_of(self, 0);
	if (!fail_allocations(1))
		SKIP(return, "no fault injection for page allocation");
	put(self->mem, 0, NEW);
	fail_no_allocations();
	EXPECT_EQ(pfn_of(self, 0) != pfn, given_back(self, left));
	if (given_back(self, left))
		EXPECT_EQ(order_from(self, 0), 0);
	expect_content(_metadata, self, left);
}

/* One allocation after the other fails, of all that the fault makes. */
TEST_F_TIMEOUT(cow_last_page, each_alloc_fails, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	bool failed = true;
	int fd, nth;

	if (!may_fail_each())
		SKIP(return, "no fault injection for page allocation");
	set_keep(self, 100);
	for (nth = 0; failed && nth < MAX_ALLOCATIONS; nth++) {
		leave(_metadata, self, left);
		fd = fail_nth(nth + 1);
		put(self->mem, 0, NEW);
		failed = has_failed(fd);
		expect_content(_metadata, self, left);
	}
	EXPECT_FALSE(failed);
	EXPECT_GT(nth, given_back(self, left));
}

/* The cgroup is full: nobody is killed for a copy that need not be. */
TEST_F_TIMEOUT(cow_last_page, memcg_limit, TIMEOUT)
{
	const char *reason = enter_cgroup();
	const size_t left = self->folio_nr / 2;
	unsigned long pfn;
	int max;

	if (reason)
		SKIP(return, "%s", reason);
	set_keep(self, 100);
	leave(_metadata, self, left);
	pfn = pfn_of(self, 0);
	/* Now, as a file that is opened is charged. */
	max = open(CGROUP "/memory.max", O_WRONLY);
	ASSERT_GE(max, 0);
	ASSERT_TRUE(try_leave_room(0));
	put(self->mem, 0, NEW);
	ASSERT_EQ(write(max, "max", 3), 3);
	EXPECT_EQ(pfn_of(self, 0), pfn);
	close(max);
	expect_content(_metadata, self, left);
	leave_cgroup();
}

/*
 * Races
 */

struct storer {
	struct _test_data_cow_last_page *self;
	pthread_barrier_t *barrier;
	size_t first;
	size_t left;
	bool *stop;
};

static void *store_every_other(void *arg)
{
	struct storer *storer = arg;

	for (;;) {
		pthread_barrier_wait(storer->barrier);
		if (*storer->stop)
			return NULL;
		for (size_t i = storer->first; i < storer->left; i += 2)
			put(storer->self->mem, i, NEW + i);
		pthread_barrier_wait(storer->barrier);
	}
}

/* Two threads store to what is left of a folio. */
TEST_F_TIMEOUT(cow_last_page, race_two_threads, TIMEOUT)
{
	const size_t left = self->folio_nr / 2;
	time_t end = time(NULL) + RACE_SECONDS;
	pthread_barrier_t barrier;
	bool stop = false;
	struct storer storers[] = {
		{ self, &barrier, 0, left, &stop }, { self, &barrier, 1, left, &stop },
	};
	pthread_t threads[2];

	set_keep(self, 100);
	ASSERT_EQ(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, store_every_other,
					 &storers[i]), 0);
	do {
		leave(_metadata, self, left);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		EXPECT_EQ(mismatches(self, 0, self->nr, NEW), 0);
	} while (time(NULL) <= end);
	stop = true;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
}

/*
 * The debugfs file
 */

TEST(keep_choices)
{
	static const size_t choices[] = { 0, 1, 25, 99, 100 };

	if (!has_keep())
		SKIP(return, "no %s", KEEP_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(choices); i++) {
		set_number(KEEP_FILE, choices[i]);
		EXPECT_EQ(number_in(KEEP_FILE), choices[i]);
	}
}

TEST(keep_wrong_input)
{
	static const char * const wrong[] = {
		"101", "-1", "4294967296", "18446744073709551616", "25%", "half", "0.25",
		"25 25", "00000000000000000000000000025"
	};

	if (!has_keep())
		SKIP(return, "no %s", KEEP_FILE);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		size_t before = number_in(KEEP_FILE);

		EXPECT_FALSE(try_set(KEEP_FILE, wrong[i])) TH_LOG("input: %s", wrong[i]);
		EXPECT_EQ(errno, EINVAL) TH_LOG("input: %s", wrong[i]);
		EXPECT_EQ(number_in(KEEP_FILE), before) TH_LOG("input: %s", wrong[i]);
	}
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
