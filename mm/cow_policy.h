/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How much a write fault after fork() does beyond the page that faulted.
 *
 * Only decisions are made here, from what the caller tells and from PTEs that
 * it lets us look at.  There are no locks and no page tables, so that all of it
 * can be tested.
 *
 * fork() write-protects every PTE.  A PTE that is writable since was written
 * to, or is in the block of one that was, so writable PTEs beside a fault tell
 * that the process writes to its neighbourhood.  The evidence needs no memory
 * of its own, and the next fork() resets it.
 */
#ifndef __MM_COW_POLICY_H
#define __MM_COW_POLICY_H

#include <linux/align.h>
#include <linux/bitops.h>
#include <linux/log2.h>
#include <linux/minmax.h>
#include <linux/pgtable.h>
#include <linux/sizes.h>

/* Some architectures can treat so many contiguous PTEs as one. */
#ifdef CONT_PTES
#define COW_CONT_PTES		CONT_PTES
#else
#define COW_CONT_PTES		1
#endif

/* What a single fault may always touch: 64K, or one block of contiguous PTEs. */
#define COW_BLOCK_PTES		((unsigned int)MAX(SZ_64K / PAGE_SIZE, COW_CONT_PTES))

/* What a single fault touches at most; bounds its latency. */
#define COW_WINDOW_PTES		MAX(MIN(PTRS_PER_PTE / 2, 256U), COW_BLOCK_PTES)

/* Density: so many PTEs, spread evenly, stand for all of them. */
#define COW_SAMPLES		16

/* What a reuse fault may map writable. */
enum cow_reuse {
	COW_REUSE_PAGE,		/* the page that faulted */
	COW_REUSE_BLOCK,	/* the block around it */
	COW_REUSE_RUN,		/* more, on the evidence of writable PTEs */
};

/* What a copy fault may copy. */
enum cow_copy {
	COW_COPY_NEVER,		/* the page that faulted */
	COW_COPY_ADAPTIVE,	/* a block, on the evidence of writable PTEs */
	COW_COPY_ALWAYS,	/* the largest block there can be */
};

/* The smallest block: one of two pages would save too little. */
#define COW_COPY_MIN_ORDER	2

/*
 * The largest block, unless another is chosen: 64K.  Where base pages are larger
 * than 4K, a contpte block is 2M, which is too much for a single fault.
 */
#define COW_COPY_MAX_ORDER	(16 - MIN(PAGE_SHIFT, 16))

/* Of an exclusive folio, keep what is not mapped any more if so much still is. */
#define COW_KEEP_MIN_PERCENT	25

/* What a write fault did, and what decided how much; for the tracepoint. */
enum cow_action {
	COW_ACTION_REUSE,
	COW_ACTION_COPY,
	COW_ACTION_FALLBACK,	/* was to copy a block, and did not */
};

enum cow_reason {
	COW_REASON_BLOCK,	/* no evidence, or none was asked for */
	COW_REASON_RUN,		/* writable PTEs beside the block */
	COW_REASON_DENSE,	/* writable PTEs all over the folio */
	COW_REASON_ALWAYS,	/* evidence was not asked for */
	COW_REASON_LAST,	/* so little of the folio is left that it is given back */
	COW_REASON_MEMORY,	/* no folio could be had, or charged */
	COW_REASON_POISON,	/* a page could not be read */
	COW_REASON_RACE,	/* the PTEs changed during the copy */
};

/**
 * struct cow_range - a range of PTEs in one page table
 * @start: index of the first PTE
 * @end: index after the last PTE
 */
struct cow_range {
	unsigned int start;
	unsigned int end;
};

/**
 * struct cow_window - what a write fault handles
 * @range: the PTEs
 * @reason: what decided about their number
 */
struct cow_window {
	struct cow_range range;
	enum cow_reason reason;
};

/**
 * typedef cow_writable_fn - Does a PTE show that its page was written to?
 * @ctx: what the caller of the policy passed in
 * @idx: index of the PTE in the page table; within the range of the folio
 *
 * Return: true if the PTE is writable and maps what counts: for a reuse, the page
 * of the folio that belongs there; for a copy, any page.
 */
typedef bool (*cow_writable_fn)(const void *ctx, unsigned int idx);

/* The aligned @nr PTEs around the one at @idx, as far as the folio reaches. */
static inline struct cow_range cow_aligned_range(struct cow_range folio,
						 unsigned int idx,
						 unsigned int nr)
{
	const unsigned int start = ALIGN_DOWN(idx, nr);

	return (struct cow_range) {
		.start = max(start, folio.start),
		.end = min(start + nr, folio.end),
	};
}

/*
 * The length of a run of writable PTEs, by looks at distances that double: the
 * PTE at @first, then the one that is twice as far as the run found so far.
 * @step is 1 or -1, @room the number of PTEs there are in that direction.
 */
static __always_inline unsigned int
cow_writable_run(unsigned int first, int step, unsigned int room,
		 cow_writable_fn writable, const void *ctx)
{
	unsigned int run, next;

	if (!room || !writable(ctx, first))
		return 0;

	run = min_t(unsigned int, COW_BLOCK_PTES, room);
	while (run < room) {
		next = min(2 * run, room);
		if (!writable(ctx, first + step * (int)(next - 1)))
			break;
		run = next;
	}
	return run;
}

/*
 * Are so many PTEs of the folio writable already that the others will follow?
 *
 * Mapping the rest pays when three of eight blocks or more are writable.  The
 * samples go round the folio from the fault, by an odd number of blocks so that
 * they do not fall in step with a regular pattern, and end as soon as they are
 * one behind three of eight: where stores are few, after the third.  Few
 * scattered stores must not pass by chance, so all of them have to be taken for
 * a yes.
 */
static __always_inline bool cow_dense(struct cow_range folio, unsigned int idx,
				      cow_writable_fn writable, const void *ctx)
{
	const unsigned int nr_ptes = folio.end - folio.start;
	const unsigned int nr_blocks = nr_ptes / COW_BLOCK_PTES;
	const unsigned int stride = (nr_blocks * 5 / 16 | 1) * COW_BLOCK_PTES;
	unsigned int i, nr = 0;

	if (nr_blocks < COW_SAMPLES)
		return false;

	for (i = 1; i < COW_SAMPLES; i++) {
		idx += stride;
		if (idx >= folio.end)
			idx -= nr_ptes;
		nr += writable(ctx, idx);
		if (8 * (nr + 1) < 3 * i)
			return false;
	}
	return 8 * nr >= 3 * COW_SAMPLES;
}

/* A run behind the block: open it on the far side, where the writer goes next. */
static __always_inline struct cow_range
cow_extend_end(struct cow_range folio, struct cow_range range, unsigned int nr)
{
	const unsigned int max = range.start + COW_WINDOW_PTES;

	range.end = min3(range.end + nr, folio.end, max);
	return range;
}

/* The same for a writer that goes downwards. */
static __always_inline struct cow_range
cow_extend_start(struct cow_range folio, struct cow_range range, unsigned int nr)
{
	const unsigned int max = COW_WINDOW_PTES - (range.end - range.start);

	range.start -= min3(nr, range.start - folio.start, max);
	return range;
}

/**
 * cow_reuse_window - The PTEs that a reuse fault maps writable.
 * @policy: how much is allowed; not COW_REUSE_PAGE
 * @folio: the PTEs that can map the folio in this page table and this VMA
 * @idx: index of the PTE that faulted; within @folio
 * @writable: tells about other PTEs of @folio
 * @ctx: passed on to @writable
 *
 * The block around the fault is always part of the window.  A run of writable
 * PTEs beside it opens the window by twice its length on the other side, where
 * a sequential writer goes next.  Where the whole folio is written to densely
 * in no order, as much is opened as a single fault may handle.
 *
 * Return: the window; it is at most COW_WINDOW_PTES long.
 */
static __always_inline struct cow_window
cow_reuse_window(enum cow_reuse policy, struct cow_range folio, unsigned int idx,
		 cow_writable_fn writable, const void *ctx)
{
	const struct cow_range block = cow_aligned_range(folio, idx, COW_BLOCK_PTES);
	struct cow_window window = { block, COW_REASON_BLOCK };
	unsigned int run;

	if (policy == COW_REUSE_BLOCK)
		return window;

	run = cow_writable_run(block.start - 1, /* step = */ -1,
			       block.start - folio.start, writable, ctx);
	if (run)
		return (struct cow_window) {
			cow_extend_end(folio, block, 2 * run), COW_REASON_RUN
		};

	run = cow_writable_run(block.end, /* step = */ 1,
			       folio.end - block.end, writable, ctx);
	if (run)
		return (struct cow_window) {
			cow_extend_start(folio, block, 2 * run), COW_REASON_RUN
		};

	if (cow_dense(folio, idx, writable, ctx))
		return (struct cow_window) {
			cow_aligned_range(folio, idx, COW_WINDOW_PTES),
			COW_REASON_DENSE
		};

	return window;
}

/*
 * The order of a block at @edge, going by the run of writable PTEs on the other side
 * of it: @step is the direction of the run, @room the number of PTEs there.
 */
static __always_inline unsigned int
cow_run_order(unsigned int edge, int step, unsigned int room,
	      unsigned int max_order, cow_writable_fn writable, const void *ctx)
{
	unsigned int idx = step < 0 ? edge - 1 : edge;
	unsigned int run = 0;

	if (room < 1U << COW_COPY_MIN_ORDER || !writable(ctx, idx))
		return 0;

	max_order = min_t(unsigned int, max_order, __ffs(edge));
	room = min(room, 1U << max_order);
	while (++run < room) {
		idx += step;
		if (!writable(ctx, idx))
			break;
	}
	return run < 1U << COW_COPY_MIN_ORDER ? 0 : ilog2(run);
}

/**
 * cow_copy_evidence - May there be evidence for a block?
 * @range: the PTEs of this page table, or those of it in this VMA
 * @idx: index of the PTE that faulted; within @range
 * @writable: tells about other PTEs of @range
 * @ctx: passed on to @writable
 *
 * This is the cheap part of cow_copy_order(): it looks at one PTE on each side of
 * the smallest block.
 *
 * Return: true if one of them is writable.
 */
static __always_inline bool
cow_copy_evidence(struct cow_range range, unsigned int idx,
		  cow_writable_fn writable, const void *ctx)
{
	const unsigned int start = ALIGN_DOWN(idx, 1U << COW_COPY_MIN_ORDER);
	const unsigned int end = start + (1U << COW_COPY_MIN_ORDER);

	return (start > range.start && writable(ctx, start - 1)) ||
	       (end < range.end && writable(ctx, end));
}

/**
 * cow_copy_order - The order of the block that a copy fault may copy.
 * @range: the PTEs of this page table and this VMA
 * @idx: index of the PTE that faulted; within @range
 * @max_order: the largest order allowed; at least COW_COPY_MIN_ORDER
 * @writable: tells about other PTEs of @range
 * @ctx: passed on to @writable
 *
 * An aligned block is copied only if as many PTEs right beside it are writable.
 * These pages were stored to since fork(), or are in blocks that were copied or
 * reused for a store: after a dense stretch, one store a block is enough to go on.
 * A block with a writable PTE in it is not shared any more; so a larger block that
 * has the run in it is of no use, and the smallest one is looked at before runs are.
 *
 * Return: the order, or 0 to copy a single page.
 */
static __always_inline unsigned int
cow_copy_order(struct cow_range range, unsigned int idx, unsigned int max_order,
	       cow_writable_fn writable, const void *ctx)
{
	const unsigned int start = ALIGN_DOWN(idx, 1U << COW_COPY_MIN_ORDER);
	const unsigned int end = start + (1U << COW_COPY_MIN_ORDER);
	unsigned int i, order = 0;

	if (start < range.start || end > range.end)
		return 0;
	for (i = start; i < end; i++)
		if (writable(ctx, i))
			return 0;

	if (start > range.start)
		order = cow_run_order(start, /* step = */ -1, start - range.start,
				      max_order, writable, ctx);
	if (!order && end < range.end)
		order = cow_run_order(end, /* step = */ 1, range.end - end,
				      max_order, writable, ctx);
	return order;
}

/**
 * cow_gives_back - Is too little of an exclusive folio mapped to keep all of it?
 * @min_percent: the share to be mapped, of the pages of the folio
 * @nr_mapped: the number of pages that are mapped
 * @nr_pages: the number of pages of the folio
 *
 * A page that is not mapped any more is of use to nobody, but is freed only with the
 * whole folio.
 *
 * Return: true if a write fault should copy rather than reuse.
 */
static inline bool cow_gives_back(unsigned int min_percent,
				  unsigned int nr_mapped, unsigned int nr_pages)
{
	return 100 * nr_mapped < min_percent * nr_pages;
}

/* The active policies.  They are variables only for cow_debugfs.c. */
#ifdef CONFIG_DEBUG_FS
extern unsigned int cow_active_reuse;
extern unsigned int cow_active_copy;
extern unsigned int cow_active_copy_max_order;
extern unsigned int cow_active_keep_min_percent;

static inline enum cow_reuse cow_reuse_policy(void)
{
	return READ_ONCE(cow_active_reuse);
}

static inline enum cow_copy cow_copy_policy(void)
{
	return READ_ONCE(cow_active_copy);
}

static inline unsigned int cow_copy_max_order(void)
{
	return READ_ONCE(cow_active_copy_max_order);
}

static inline unsigned int cow_keep_min_percent(void)
{
	return READ_ONCE(cow_active_keep_min_percent);
}
#else
static inline enum cow_reuse cow_reuse_policy(void)
{
	return COW_REUSE_RUN;
}

static inline enum cow_copy cow_copy_policy(void)
{
	return COW_COPY_ADAPTIVE;
}

static inline unsigned int cow_copy_max_order(void)
{
	return COW_COPY_MAX_ORDER;
}

static inline unsigned int cow_keep_min_percent(void)
{
	return COW_KEEP_MIN_PERCENT;
}
#endif

#endif /* __MM_COW_POLICY_H */
