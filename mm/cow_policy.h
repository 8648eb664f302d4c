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

/* What a write fault did, and what decided how much; for the tracepoint. */
enum cow_action {
	COW_ACTION_REUSE,
};

enum cow_reason {
	COW_REASON_BLOCK,	/* no evidence, or none was asked for */
	COW_REASON_RUN,		/* writable PTEs beside the block */
	COW_REASON_DENSE,	/* writable PTEs all over the folio */
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
 * Return: true if the PTE maps the page of the folio that belongs there, and
 * maps it writable.
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

/* The active policy, and the only one there is without cow_debugfs.c. */
#ifdef CONFIG_DEBUG_FS
enum cow_reuse cow_reuse_policy(void);
#else
static inline enum cow_reuse cow_reuse_policy(void)
{
	return COW_REUSE_RUN;
}
#endif

#endif /* __MM_COW_POLICY_H */
