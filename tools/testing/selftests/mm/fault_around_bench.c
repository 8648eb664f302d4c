// SPDX-License-Identifier: GPL-2.0
/*
 * What faults on the page cache cost, and taking the mappings away again.
 *
 * Writes a file of 32 MiB, in folios of one size, to each directory that is given,
 * and maps it.  One JSON object a line and measurement; the cost is that of all pages.
 *
 *	map		read faults that map what is around the address
 *	unmap		munmap() of that
 *	fault		read faults that map the page, or the folio, at the address
 *	write		write faults on a shared mapping
 *	unmap_written	munmap() of that
 *	cow		write faults on a private mapping
 *	anon		first touches of anonymous memory, 4K each
 *	unmap_anon	munmap() of that
 *
 * The unit is whatever CLOCK_MONOTONIC counts: nanoseconds, or, with -i, guest
 * instructions under "qemu -icount shift=0,sleep=off".
 *
 * Not run by run_vmtests.sh: it measures and cannot fail but for its setup.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "kselftest.h"
#include "vm_util.h"

#define AREA_SIZE		(32UL << 20)
#define MAX_ROUNDS		99
#define FAULT_AROUND_FILE	"/sys/kernel/debug/fault_around_bytes"

enum mode {
	MODE_MAP, MODE_UNMAP, MODE_FAULT, MODE_WRITE, MODE_UNMAP_WRITTEN, MODE_COW,
	MODE_ANON, MODE_UNMAP_ANON, NR_MODES
};

static const char * const mode_names[] = {
	"map", "unmap", "fault", "write", "unmap_written", "cow", "anon", "unmap_anon",
};

static const unsigned int sizes_kb[] = { 4, 64 };

static struct {
	const char *kernel;
	unsigned int rounds;
	bool insns;
} opts = { .rounds = 3 };

struct sample {
	uint64_t cost;
	unsigned long faults;
};

static struct sample samples[NR_MODES][MAX_ROUNDS];

static uint64_t now(void)
{
	static struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static unsigned long minor_faults(void)
{
	static struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_minflt;
}

/* Folios are as large as what is written to at once. */
static void write_folios(int fd, unsigned int size_kb)
{
	const size_t size = (size_t)size_kb << 10;
	static char buf[64 << 10];

	if (ftruncate(fd, 0))
		ksft_exit_fail_perror("ftruncate");
	for (off_t off = 0; off < (off_t)AREA_SIZE; off += size)
		if (pwrite(fd, buf, size, off) != (ssize_t)size)
			ksft_exit_fail_perror("pwrite");
	/* Not while they are written back. */
	if (fsync(fd))
		ksft_exit_fail_perror("fsync");
}

/* Are the folios of the page cache, all mapped at @area, of this size? */
static bool folios_have_size(char *area, unsigned int size_kb)
{
	int pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	int kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	uint64_t flags, expected;
	bool same = true;

	if (pagemap_fd < 0 || kpageflags_fd < 0)
		ksft_exit_fail_perror("pagemap, kpageflags");
	for (size_t off = 0; off < AREA_SIZE && same; off += psize()) {
		if (pageflags_get(pagemap_get_pfn(pagemap_fd, area + off), kpageflags_fd,
				  &flags))
			ksft_exit_fail_perror("kpageflags");
		expected = off % ((size_t)size_kb << 10) ? KPF_COMPOUND_TAIL :
			   size_kb << 10 > psize() ? KPF_COMPOUND_HEAD : 0;
		same = (flags & (KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL)) == expected;
	}
	close(pagemap_fd);
	close(kpageflags_fd);
	return same;
}

static void set_window(size_t bytes)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%zu", bytes);
	write_file(FAULT_AROUND_FILE, buf, strlen(buf) + 1);
}

static char *map_area(int fd, int prot, int flags)
{
	char *area = mmap(NULL, AREA_SIZE, prot, flags, fd, 0);

	if (area == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	/* Else khugepaged replaces the small folios of tmpfs meanwhile. */
	madvise(area, AREA_SIZE, MADV_NOHUGEPAGE);
	return area;
}

static void touch(char *area, bool store)
{
	const size_t size = psize();

	for (size_t off = 0; off < AREA_SIZE; off += size) {
		if (store)
			*(volatile char *)(area + off) = 1;
		else
			(void)*(volatile char *)(area + off);
	}
}

static void time_touch(char *area, bool store, struct sample *s)
{
	s->faults = minor_faults();
	s->cost = now();
	touch(area, store);
	s->cost = now() - s->cost;
	s->faults = minor_faults() - s->faults;
}

static void time_unmap(char *area, struct sample *s)
{
	s->faults = 0;
	s->cost = now();
	munmap(area, AREA_SIZE);
	s->cost = now() - s->cost;
}

/* A record claims that the page cache has folios of this size; else there is none. */
static bool file_has_size(int fd, unsigned int size_kb)
{
	char *area = map_area(fd, PROT_READ, MAP_SHARED);
	bool same;

	touch(area, false);
	same = folios_have_size(area, size_kb);
	munmap(area, AREA_SIZE);
	return same;
}

static void measure_file(int fd, unsigned int round)
{
	char *area;

	area = map_area(fd, PROT_READ, MAP_SHARED);
	time_touch(area, false, &samples[MODE_MAP][round]);
	time_unmap(area, &samples[MODE_UNMAP][round]);

	set_window(psize());
	area = map_area(fd, PROT_READ, MAP_SHARED);
	time_touch(area, false, &samples[MODE_FAULT][round]);
	munmap(area, AREA_SIZE);
	set_window(64 << 10);

	area = map_area(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	time_touch(area, true, &samples[MODE_WRITE][round]);
	time_unmap(area, &samples[MODE_UNMAP_WRITTEN][round]);
	/* All rounds begin with clean pages. */
	fsync(fd);

	area = map_area(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	time_touch(area, true, &samples[MODE_COW][round]);
	munmap(area, AREA_SIZE);
}

static void measure_anon(unsigned int round)
{
	char *area = map_area(-1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);

	time_touch(area, true, &samples[MODE_ANON][round]);
	time_unmap(area, &samples[MODE_UNMAP_ANON][round]);
}

static int cmp_cost(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	return x->cost < y->cost ? -1 : x->cost > y->cost;
}

static const char *arch(void)
{
	static struct utsname uts;

	uname(&uts);
	return strcmp(uts.machine, "aarch64") ? uts.machine : "arm64";
}

static void report(const char *pattern, unsigned int size_kb, enum mode first,
		   enum mode end)
{
	for (enum mode mode = first; mode < end; mode++) {
		struct sample *s = samples[mode];

		qsort(s, opts.rounds, sizeof(*s), cmp_cost);
		s += opts.rounds / 2;
		printf("{\"arch\":\"%s\",\"kernel\":\"%s\",\"mode\":\"%s\",\"size_kb\":%u,\"pattern\":\"%s\",",
		       arch(), opts.kernel, mode_names[mode], size_kb, pattern);
		printf("\"pages\":%lu,\"faults\":%lu,\"insns\":%llu%s}\n",
		       AREA_SIZE / psize(), s->faults, (unsigned long long)s->cost,
		       opts.insns ? "" : ",\"unit\":\"ns\"");
	}
}

static void bench_dir(const char *name, const char *dir)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/fault_around_bench.XXXXXX", dir);
	fd = mkstemp(path);
	if (fd < 0)
		ksft_exit_fail_perror(dir);
	unlink(path);
	for (size_t i = 0; i < ARRAY_SIZE(sizes_kb); i++) {
		write_folios(fd, sizes_kb[i]);
		if (!file_has_size(fd, sizes_kb[i])) {
			ksft_print_msg("%s has no folios of %u kB: not measured\n", name,
				       sizes_kb[i]);
			continue;
		}
		for (unsigned int round = 0; round < opts.rounds; round++)
			measure_file(fd, round);
		report(name, sizes_kb[i], MODE_MAP, MODE_ANON);
	}
	close(fd);
}

static void bench_anon(void)
{
	for (unsigned int round = 0; round < opts.rounds; round++)
		measure_anon(round);
	report("anon", 4, MODE_ANON, NR_MODES);
}

static void usage(const char *name)
{
	fprintf(stderr, "usage: %s [-i] [-k kernel] [-r rounds] NAME=DIRECTORY...\n"
		"  -i  the clock counts instructions, not nanoseconds\n"
		"  -k  the name of the kernel in the records\n"
		"  -r  median of so many rounds (default 3)\n"
		"Folios of 4 and 64 kB are measured where the file system makes them;\n"
		"tmpfs does either with huge=never or with huge=within_size.\n",
		name);
	exit(KSFT_FAIL);
}

int main(int argc, char **argv)
{
	struct utsname uts;
	char *dir;
	int opt;

	uname(&uts);
	opts.kernel = uts.release;
	while ((opt = getopt(argc, argv, "ik:r:")) != -1) {
		if (opt == 'i')
			opts.insns = true;
		else if (opt == 'k')
			opts.kernel = optarg;
		else if (opt == 'r')
			opts.rounds = atoi(optarg);
		else
			usage(argv[0]);
	}
	if (opts.rounds < 1 || opts.rounds > MAX_ROUNDS || optind == argc)
		usage(argv[0]);
	for (int i = optind; i < argc; i++) {
		dir = strchr(argv[i], '=');
		if (!dir)
			usage(argv[0]);
		*dir++ = '\0';
		bench_dir(argv[i], dir);
	}
	bench_anon();
	return KSFT_PASS;
}
