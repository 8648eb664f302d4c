/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Of which folios memory is mapped, as /proc/PID/pagemap and /proc/kpageflags tell
 * (root only).
 */
#ifndef FOLIOS_H
#define FOLIOS_H

#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#define FOLIOS_ORDERS		10	/* 4K to 2M */
#define FOLIOS_CHUNK		512	/* folios are aligned, so each is within one */

#define PM_PRESENT		(1ULL << 63)
#define PM_FILE			(1ULL << 61)
#define PM_PFN(entry)		((entry) & ((1ULL << 55) - 1))
#define KPF_COMPOUND_TAIL	(1ULL << 16)

/* Pages that are mapped, by the order of their folio. */
struct folio_count {
	unsigned long pages[FOLIOS_ORDERS];
	unsigned long whole[FOLIOS_ORDERS];	/* in folios of which no page is missing */
};

/* What is known of the folio that was looked at last. */
struct folio_walk {
	int pagemap_fd, kpageflags_fd;
	uint64_t flags[FOLIOS_CHUNK];
	uint64_t chunk;			/* the pfn that flags[] begins at */
	uint64_t head;			/* pfn of the first page */
	unsigned int nr;		/* pages of the folio */
	unsigned int run;		/* of these, seen in order from the first on */
};

static inline int open_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static inline void walk_open(struct folio_walk *walk, const char *pagemap)
{
	walk->pagemap_fd = open_file(pagemap);
	walk->kpageflags_fd = open_file("/proc/kpageflags");
	walk->chunk = UINT64_MAX;
	walk->nr = 0;
}

static inline void walk_close(struct folio_walk *walk)
{
	close(walk->pagemap_fd);
	close(walk->kpageflags_fd);
}

static inline void walk_read_chunk(struct folio_walk *walk, uint64_t pfn)
{
	const uint64_t chunk = pfn - pfn % FOLIOS_CHUNK;
	ssize_t len;

	if (chunk == walk->chunk)
		return;
	len = pread(walk->kpageflags_fd, walk->flags, sizeof(walk->flags),
		    chunk * sizeof(walk->flags[0]));
	if (len != sizeof(walk->flags))
		errx(1, "/proc/kpageflags: nothing about pfn 0x%llx", (unsigned long long)pfn);
	walk->chunk = chunk;
}

/* Find the bounds of the folio that the page belongs to. */
static inline void walk_new_folio(struct folio_walk *walk, uint64_t pfn)
{
	unsigned int start = pfn % FOLIOS_CHUNK, end;

	walk_read_chunk(walk, pfn);
	while (start && walk->flags[start] & KPF_COMPOUND_TAIL)
		start--;
	for (end = start + 1; end < FOLIOS_CHUNK; end++)
		if (!(walk->flags[end] & KPF_COMPOUND_TAIL))
			break;
	walk->head = walk->chunk + start;
	walk->nr = end - start;
	walk->run = 0;
}

static inline void walk_page(struct folio_walk *walk, uint64_t pfn, struct folio_count *count)
{
	unsigned int order;

	if (!walk->nr || pfn < walk->head || pfn >= walk->head + walk->nr ||
	    pfn == walk->head)
		walk_new_folio(walk, pfn);
	order = 31 - __builtin_clz(walk->nr);
	count->pages[order]++;
	walk->run = pfn == walk->head + walk->run ? walk->run + 1 : 0;
	if (walk->run == walk->nr)
		count->whole[order] += walk->nr;
}

/* Add the anonymous pages that are mapped from start to end. */
static inline void walk_range(struct folio_walk *walk, uintptr_t start, uintptr_t end,
			      struct folio_count *count)
{
	uint64_t entries[FOLIOS_CHUNK];
	uintptr_t idx = start / 4096;
	ssize_t nr;

	for (; idx < end / 4096; idx += nr) {
		nr = end / 4096 - idx < FOLIOS_CHUNK ? end / 4096 - idx : FOLIOS_CHUNK;
		nr = pread(walk->pagemap_fd, entries, nr * sizeof(entries[0]),
			   idx * sizeof(entries[0]));
		nr /= (ssize_t)sizeof(entries[0]);
		if (nr <= 0)
			return;		/* the process is gone */
		for (ssize_t i = 0; i < nr; i++)
			if (entries[i] & PM_PRESENT && !(entries[i] & PM_FILE))
				walk_page(walk, PM_PFN(entries[i]), count);
	}
}

#endif
