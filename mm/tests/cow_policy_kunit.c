// SPDX-License-Identifier: GPL-2.0-only
#include <kunit/test.h>

#include "../cow_policy.h"

#define BLOCK	COW_BLOCK_PTES
#define WIDEST	((unsigned int)COW_WINDOW_PTES)
#define ALL	((unsigned int)PTRS_PER_PTE)

/* A page table: which PTEs are writable, and how often the policy looked. */
struct table {
	bool *writable;
	unsigned int looks;
	struct cow_range folio;
	struct kunit *test;
};

static bool look(const void *ctx, unsigned int idx)
{
	struct table *t = (struct table *)ctx;

	/* Other PTEs may belong to another VMA or page table. */
	KUNIT_EXPECT_GE(t->test, idx, t->folio.start);
	KUNIT_EXPECT_LT(t->test, idx, t->folio.end);
	t->looks++;
	return t->writable[idx];
}

static struct table *new_table(struct kunit *test, unsigned int start,
			       unsigned int end)
{
	struct table *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, t);
	t->writable = kunit_kcalloc(test, ALL, sizeof(bool), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, t->writable);
	t->folio = (struct cow_range) { start, end };
	t->test = test;
	return t;
}

/* What do_wp_page() does with the answer. */
static struct cow_window fault(struct table *t, enum cow_reuse policy,
			       unsigned int idx)
{
	struct cow_window w = cow_reuse_window(policy, t->folio, idx, look, t);

	KUNIT_EXPECT_LE(t->test, w.range.start, idx);
	KUNIT_EXPECT_GT(t->test, w.range.end, idx);
	KUNIT_EXPECT_GE(t->test, w.range.start, t->folio.start);
	KUNIT_EXPECT_LE(t->test, w.range.end, t->folio.end);
	KUNIT_EXPECT_LE(t->test, w.range.end - w.range.start, WIDEST);
	for (unsigned int i = w.range.start; i < w.range.end; i++)
		t->writable[i] = true;
	return w;
}

static void expect_window(struct kunit *test, struct cow_window w,
			  unsigned int start, unsigned int end,
			  enum cow_reason reason)
{
	KUNIT_EXPECT_EQ(test, w.range.start, start);
	KUNIT_EXPECT_EQ(test, w.range.end, end);
	KUNIT_EXPECT_EQ(test, w.reason, reason);
}

static void block_is_aligned(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	if (ALL < 3 * BLOCK)
		kunit_skip(test, "a page table of less than three blocks");

	expect_window(test, fault(t, COW_REUSE_BLOCK, 0), 0, BLOCK, COW_REASON_BLOCK);
	expect_window(test, fault(t, COW_REUSE_BLOCK, 3 * BLOCK - 1),
		      2 * BLOCK, 3 * BLOCK, COW_REASON_BLOCK);
	expect_window(test, fault(t, COW_REUSE_BLOCK, ALL - 1),
		      ALL - BLOCK, ALL, COW_REASON_BLOCK);
}

static void block_ignores_evidence(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, BLOCK);
	expect_window(test, fault(t, COW_REUSE_BLOCK, BLOCK),
		      BLOCK, 2 * BLOCK, COW_REASON_BLOCK);
	KUNIT_EXPECT_EQ(test, t->looks, 0);
}

static void block_stays_in_folio(struct kunit *test)
{
	const unsigned int start = BLOCK + BLOCK / 2, end = start + 2;
	struct table *t;

	if (BLOCK < 4)
		kunit_skip(test, "a block of less than four PTEs");

	t = new_table(test, start, end);
	expect_window(test, fault(t, COW_REUSE_RUN, start), start, end, COW_REASON_BLOCK);
	/* The folio is in one block: there is nothing to look at. */
	KUNIT_EXPECT_EQ(test, t->looks, 0);
}

static void single_pte(struct kunit *test)
{
	struct table *t = new_table(test, 7, 8);

	expect_window(test, fault(t, COW_REUSE_RUN, 7), 7, 8, COW_REASON_BLOCK);
}

static void run_behind_opens_twice_ahead(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, BLOCK);
	expect_window(test, fault(t, COW_REUSE_RUN, BLOCK),
		      BLOCK, min3(4 * BLOCK, BLOCK + WIDEST, ALL), COW_REASON_RUN);
}

static void run_ahead_opens_twice_behind(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	if (WIDEST < 3 * BLOCK || ALL < 8 * BLOCK)
		kunit_skip(test, "a window of less than three blocks");

	memset(t->writable + 7 * BLOCK, true, BLOCK);
	expect_window(test, fault(t, COW_REUSE_RUN, 7 * BLOCK - 1),
		      4 * BLOCK, 7 * BLOCK, COW_REASON_RUN);
}

/* The PTE right beside the block decides, not one farther away. */
static void gap_ends_run(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	if (ALL < 8 * BLOCK)
		kunit_skip(test, "a page table of less than eight blocks");

	memset(t->writable, true, 2 * BLOCK - 1);
	expect_window(test, fault(t, COW_REUSE_RUN, 2 * BLOCK),
		      2 * BLOCK, 3 * BLOCK, COW_REASON_BLOCK);
}

static void window_stays_in_folio(struct kunit *test)
{
	const unsigned int end = min(2 * BLOCK + 1, ALL);
	struct table *t = new_table(test, 0, end);

	if (end <= 2 * BLOCK)
		kunit_skip(test, "a page table of less than three blocks");

	memset(t->writable, true, BLOCK);
	expect_window(test, fault(t, COW_REUSE_RUN, BLOCK), BLOCK, end, COW_REASON_RUN);
}

static unsigned int count_faults(struct table *t, enum cow_reuse policy,
				 const unsigned int *order, unsigned int nr)
{
	unsigned int faults = 0;

	for (unsigned int i = 0; i < nr; i++) {
		if (t->writable[order[i]])
			continue;
		fault(t, policy, order[i]);
		faults++;
	}
	return faults;
}

static unsigned int *new_order(struct kunit *test, bool down)
{
	unsigned int *order = kunit_kcalloc(test, ALL, sizeof(*order), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, order);
	for (unsigned int i = 0; i < ALL; i++)
		order[i] = down ? ALL - 1 - i : i;
	return order;
}

/* The window doubles at least, until it is as wide as it may become. */
static void sequential_writers_take_few_faults(struct kunit *test)
{
	const unsigned int most = ilog2(WIDEST / BLOCK) + 2 + ALL / WIDEST;

	for (int down = 0; down <= 1; down++) {
		struct table *t = new_table(test, 0, ALL);
		unsigned int *order = new_order(test, down);

		KUNIT_EXPECT_LE(test, count_faults(t, COW_REUSE_RUN, order, ALL), most);
	}
}

/* A linear congruential generator: the same stores each time. */
static void shuffle(unsigned int *order, unsigned int nr)
{
	unsigned int seed = 1;

	for (unsigned int i = nr - 1; i; i--) {
		seed = seed * 1103515245 + 12345;
		swap(order[i], order[(seed >> 16) % (i + 1)]);
	}
}

/* Dense writers in no order get to the whole before they touched each block. */
static void dense_writer_takes_fewer_faults_than_blocks(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);
	unsigned int *order = new_order(test, /* down = */ false);

	if (ALL / BLOCK < 32)
		kunit_skip(test, "a page table of less than 32 blocks");

	shuffle(order, ALL);
	KUNIT_EXPECT_LE(test, count_faults(t, COW_REUSE_RUN, order, ALL),
			ALL / BLOCK * 3 / 4);
}

/* Stores far apart: none has a neighbour, and only a quarter is writable. */
static void distant_stores_stay_in_their_blocks(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);
	unsigned int i;

	for (i = 0; i < ALL / BLOCK; i += 4)
		expect_window(test, fault(t, COW_REUSE_RUN, i * BLOCK + BLOCK / 2),
			      i * BLOCK, (i + 1) * BLOCK, COW_REASON_BLOCK);
}

/* The cost of the evidence, where there is none. */
static void looks_are_bounded(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	fault(t, COW_REUSE_RUN, ALL / 2);
	KUNIT_EXPECT_LE(test, t->looks, 2 + 3);
}

static void small_folios_are_not_sampled(struct kunit *test)
{
	struct table *t;

	if (ALL < 4 * BLOCK)
		kunit_skip(test, "a page table of less than four blocks");

	t = new_table(test, BLOCK, 4 * BLOCK);
	fault(t, COW_REUSE_RUN, 2 * BLOCK);
	KUNIT_EXPECT_EQ(test, t->looks, 2);
}

#define MAX_COPY_ORDER	4U

/* What do_wp_page() asks. */
static unsigned int copy_order(struct table *t, unsigned int idx)
{
	unsigned int order;

	if (!cow_copy_evidence(t->folio, idx, look, t))
		return 0;
	order = cow_copy_order(t->folio, idx, MAX_COPY_ORDER, look, t);
	KUNIT_EXPECT_LE(t->test, order, MAX_COPY_ORDER);
	KUNIT_EXPECT_NE(t->test, order, 1);
	return order;
}

/* And what it does with the answer, if all pages of the block are shared. */
static void copy_fault(struct table *t, unsigned int idx)
{
	unsigned int order = copy_order(t, idx);

	memset(t->writable + ALIGN_DOWN(idx, 1U << order), true, 1U << order);
}

static void copy_needs_evidence(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	KUNIT_EXPECT_EQ(test, copy_order(t, 0), 0);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 0);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL - 1), 0);
	/* A look at each side, as far as there is one. */
	KUNIT_EXPECT_EQ(test, t->looks, 4);
}

static void copy_needs_run_as_long_as_block(struct kunit *test)
{
	for (unsigned int run = 1; run <= ALL / 2; run++) {
		struct table *t = new_table(test, 0, ALL);
		unsigned int order = min_t(unsigned int, ilog2(run), MAX_COPY_ORDER);

		if (order < COW_COPY_MIN_ORDER)
			order = 0;
		memset(t->writable + ALL / 2 - run, true, run);
		KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), order);
		KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 + 3), order);
		KUNIT_EXPECT_LE(test, t->looks, 2 * (8 + (1 << MAX_COPY_ORDER)));
	}
}

static void copy_run_has_no_gap(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, ALL / 2);
	t->writable[ALL / 2 - 8] = false;
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 2);
	t->writable[ALL / 2 - 3] = false;
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 0);
}

static void copy_evidence_ahead(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable + ALL / 2, true, 8);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 - 1), 3);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 - 4), 3);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 - 5), 0);
}

/* The run has to end where a block of its order can begin. */
static void copy_evidence_is_aligned(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, ALL / 2 - 4);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 - 4), 2);
	memset(t->writable, true, ALL / 2);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2),
			min_t(unsigned int, ilog2(ALL / 2), MAX_COPY_ORDER));
	memset(t->writable, true, ALL / 2 + 4);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2 + 4), 2);
}

/* A run has to be found once in a page table, then every block is a large one. */
static void copy_ramp_of_sequential_writer(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);
	unsigned int faults = 0;

	for (unsigned int idx = 0; idx < ALL; idx++) {
		if (t->writable[idx])
			continue;
		copy_fault(t, idx);
		faults++;
	}
	/* 4 pages, blocks of 4 and 8, and then of 16. */
	KUNIT_EXPECT_EQ(test, faults, 4 + 1 + 1 + (ALL - 16) / 16);
}

/* What was copied along is evidence too: one store a block goes on from a run. */
static void copy_goes_on_from_run(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, 16);
	for (unsigned int idx = 16 + 5; idx < ALL; idx += 16) {
		unsigned int order = copy_order(t, idx);

		/* Not where the store is, but beside the smallest block, is the run. */
		KUNIT_EXPECT_EQ(test, order, 0);
	}
	for (unsigned int idx = 16; idx < ALL; idx += 16) {
		KUNIT_EXPECT_EQ(test, copy_order(t, idx), MAX_COPY_ORDER);
		copy_fault(t, idx);
	}
}

/* A page that was stored to is not shared any more, nor is a block it is in. */
static void copy_of_untouched_block(struct kunit *test)
{
	struct table *t = new_table(test, 0, ALL);

	memset(t->writable, true, ALL / 2);
	KUNIT_EXPECT_NE(test, copy_order(t, ALL / 2), 0);
	t->writable[ALL / 2 + 3] = true;
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 0);
}

static void copy_stays_in_range(struct kunit *test)
{
	struct table *t = new_table(test, ALL / 2 - 2, ALL / 2 + 2);

	memset(t->writable, true, ALL);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 0);

	t->folio = (struct cow_range) { ALL / 2 - 4, ALL / 2 + 4 };
	memset(t->writable + ALL / 2, false, 4);
	KUNIT_EXPECT_EQ(test, copy_order(t, ALL / 2), 2);
}

/* The share that is set is enough; nothing is ever too little for 0, or all for 100. */
static void gives_back_below_share(struct kunit *test)
{
	KUNIT_EXPECT_FALSE(test, cow_gives_back(0, 1, ALL));
	KUNIT_EXPECT_TRUE(test, cow_gives_back(25, ALL / 4 - 1, ALL));
	KUNIT_EXPECT_FALSE(test, cow_gives_back(25, ALL / 4, ALL));
	KUNIT_EXPECT_TRUE(test, cow_gives_back(6, ALL / 32, ALL));
	KUNIT_EXPECT_FALSE(test, cow_gives_back(6, ALL / 16, ALL));
	KUNIT_EXPECT_TRUE(test, cow_gives_back(100, ALL - 1, ALL));
	KUNIT_EXPECT_FALSE(test, cow_gives_back(100, ALL, ALL));
}

/* Folios are as large as what a PMD maps at most: 512M where pages are 64K. */
static void gives_back_of_largest_folio(struct kunit *test)
{
	const unsigned int nr = SZ_512M / SZ_64K;

	KUNIT_EXPECT_TRUE(test, cow_gives_back(99, nr * 98 / 100, nr));
	KUNIT_EXPECT_FALSE(test, cow_gives_back(99, nr, nr));
}

static struct kunit_case cow_policy_test_cases[] = {
	KUNIT_CASE(block_is_aligned),
	KUNIT_CASE(block_ignores_evidence),
	KUNIT_CASE(block_stays_in_folio),
	KUNIT_CASE(single_pte),
	KUNIT_CASE(run_behind_opens_twice_ahead),
	KUNIT_CASE(run_ahead_opens_twice_behind),
	KUNIT_CASE(gap_ends_run),
	KUNIT_CASE(window_stays_in_folio),
	KUNIT_CASE(sequential_writers_take_few_faults),
	KUNIT_CASE(dense_writer_takes_fewer_faults_than_blocks),
	KUNIT_CASE(distant_stores_stay_in_their_blocks),
	KUNIT_CASE(looks_are_bounded),
	KUNIT_CASE(small_folios_are_not_sampled),
	KUNIT_CASE(copy_needs_evidence),
	KUNIT_CASE(copy_needs_run_as_long_as_block),
	KUNIT_CASE(copy_run_has_no_gap),
	KUNIT_CASE(copy_evidence_ahead),
	KUNIT_CASE(copy_evidence_is_aligned),
	KUNIT_CASE(copy_ramp_of_sequential_writer),
	KUNIT_CASE(copy_goes_on_from_run),
	KUNIT_CASE(copy_of_untouched_block),
	KUNIT_CASE(copy_stays_in_range),
	KUNIT_CASE(gives_back_below_share),
	KUNIT_CASE(gives_back_of_largest_folio),
	{}
};

static struct kunit_suite cow_policy_test_suite = {
	.name = "cow_policy",
	.test_cases = cow_policy_test_cases,
};
kunit_test_suite(cow_policy_test_suite);

MODULE_DESCRIPTION("Tests for the policy of copy-on-write faults");
MODULE_LICENSE("GPL");
