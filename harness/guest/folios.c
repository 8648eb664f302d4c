// SPDX-License-Identifier: GPL-2.0
/*
 * folios PID - how much anonymous memory of a process is mapped from folios of which
 * size, as one JSON object: "64" is KiB in folios of 64K, "whole_64" the part of it
 * in folios of which every page is mapped, in order.
 */
#include <stdio.h>
#include <string.h>

#include "folios.h"

/* Special mappings like [vdso] have no folios that count. */
static int is_memory(const char *line)
{
	const char *name = strpbrk(line, "/[");

	return !name || *name == '/' || !strncmp(name, "[heap]", 6) || !strncmp(name, "[anon", 5);
}

static void count_process(const char *pid, struct folio_count *count)
{
	static struct folio_walk walk;
	unsigned long start, end;
	char path[64], line[512];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%s/pagemap", pid);
	walk_open(&walk, path);
	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		err(1, "%s", path);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx", &start, &end) == 2 && is_memory(line))
			walk_range(&walk, start, end, count);
	fclose(maps);
	walk_close(&walk);
}

int main(int argc, char **argv)
{
	struct folio_count count = { 0 };

	if (argc != 2)
		errx(2, "usage: folios PID");
	count_process(argv[1], &count);
	for (int order = 0; order < FOLIOS_ORDERS; order++)
		printf("%s\"%u\":%lu,\"whole_%u\":%lu", order ? "," : "{",
		       4U << order, count.pages[order] * 4, 4U << order, count.whole[order] * 4);
	puts("}");
	return 0;
}
