// SPDX-License-Identifier: GPL-2.0
/*
 * Read faults on the page cache map what is around the address as well, and count
 * all of it at once: after whatever happens inside of such a window, the pages that
 * are mapped are those that should be, hold what is in the file, and are counted for
 * the process, the system, the nodes, and the memcgs that they are charged to.
 *
 * The counters have to be what they were before each case.  It is run again if they
 * are not, as somebody else may have mapped a file meanwhile.
 */
#define _GNU_SOURCE
#include <asm-generic/mman.h> /* has MADV_GUARD_INSTALL */
#include <errno.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include "cow_util.h"

#define FAULT_AROUND_FILE	"/sys/kernel/debug/fault_around_bytes"
#define REFRESH_FILE		"/proc/sys/vm/stat_refresh"
#define TMPFS_DIR		"/tmp/fault_around"
#define CGROUP_DIR		"/tmp/fault_around_cgroup"

#define WINDOW		16
#define NR		(4 * WINDOW)
#define MAX_NODES	8
#define NR_CGROUPS	2
#define TRIES		4

#define KPF_MLOCKED	BIT_ULL(33)

/* In the second window: the page that faults, and one that is special. */
#define FIRST		WINDOW
#define FAULT		(FIRST + 9)
#define ODD		(FIRST + 5)

static const char * const cgroups[NR_CGROUPS] = {
	CGROUP_DIR "/fault_around_a",
	CGROUP_DIR "/fault_around_b",
};

enum folios { SMALL, LARGE, MIXED };

FIXTURE(fault_around)
{
	size_t size;
	char *area;
	size_t area_size;
	char *mem;
	int fd;
	int pagemap_fd;
	int kpageflags_fd;
};

FIXTURE_VARIANT(fault_around)
{
	bool ext4;
	enum folios folios;
	int map_flags;
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_small_shared) {
	.folios = SMALL, .map_flags = MAP_SHARED,
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_large_shared) {
	.folios = LARGE, .map_flags = MAP_SHARED,
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_mixed_shared) {
	.folios = MIXED, .map_flags = MAP_SHARED,
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_small_private) {
	.folios = SMALL, .map_flags = MAP_PRIVATE,
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_large_private) {
	.folios = LARGE, .map_flags = MAP_PRIVATE,
};

FIXTURE_VARIANT_ADD(fault_around, tmpfs_mixed_private) {
	.folios = MIXED, .map_flags = MAP_PRIVATE,
};

FIXTURE_VARIANT_ADD(fault_around, ext4_small_shared) {
	.ext4 = true, .folios = SMALL, .map_flags = MAP_SHARED,
};

FIXTURE_VARIANT_ADD(fault_around, ext4_large_shared) {
	.ext4 = true, .folios = LARGE, .map_flags = MAP_SHARED,
};

FIXTURE_VARIANT_ADD(fault_around, ext4_mixed_private) {
	.ext4 = true, .folios = MIXED, .map_flags = MAP_PRIVATE,
};

static char saved_window[32];

static void restore(void)
{
	if (saved_window[0])
		write_setting(FAULT_AROUND_FILE, saved_window);
	restore_settings(NULL, 0);
}

/* Cgroups */

static bool try_write(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);
	bool written = fd >= 0 && write(fd, value, strlen(value)) > 0;

	if (fd >= 0)
		close(fd);
	return written;
}

static bool join(const char *cgroup)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	return try_write(path, "0");
}

static const char *make_cgroups(void)
{
	if (mkdir(CGROUP_DIR, 0700) && errno != EEXIST)
		return "cannot make " CGROUP_DIR;
	if (mount("none", CGROUP_DIR, "cgroup2", 0, NULL))
		return "no cgroup2";
	if (!try_write(CGROUP_DIR "/cgroup.subtree_control", "+memory"))
		return "no memory controller in cgroup2";
	for (int i = 0; i < NR_CGROUPS; i++) {
		/* It is there if a test was killed. */
		rmdir(cgroups[i]);
		if (mkdir(cgroups[i], 0700))
			return "cannot make a cgroup";
	}
	return NULL;
}

static void leave_cgroups(void)
{
	join(CGROUP_DIR);
	for (int i = 0; i < NR_CGROUPS; i++)
		rmdir(cgroups[i]);
}

/* The counters of a memcg are up to date only after so many changes. */
static void flush_stats(const char *cgroup)
{
	const size_t size = 512 * psize();
	char *mem;

	join(cgroup);
	mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(mem, size, MADV_NOHUGEPAGE);
	madvise(mem, size, MADV_POPULATE_WRITE);
	munmap(mem, size);
	join(cgroups[0]);
}

/* Counters */

struct counts {
	long rss;
	long mapped;
	long nodes[MAX_NODES];
	long memcgs[NR_CGROUPS][MAX_NODES];
};

static long node_mapped(int node)
{
	char path[64], buf[4096], *field;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/vmstat", node);
	if (access(path, R_OK) || !read_file(path, buf, sizeof(buf)))
		return 0;
	field = strstr(buf, "nr_mapped ");
	return field ? strtol(field + strlen("nr_mapped "), NULL, 10) : -1;
}

/* Pages of files that are charged to @cgroup and mapped, on each node. */
static void read_memcg(const char *cgroup, long *nodes)
{
	static char buf[16384];
	char path[128], name[16], *line, *field;

	flush_stats(cgroup);
	snprintf(path, sizeof(path), "%s/memory.numa_stat", cgroup);
	read_file(path, buf, sizeof(buf));
	line = strstr(buf, "\nfile_mapped ");
	for (int node = 0; node < MAX_NODES; node++) {
		snprintf(name, sizeof(name), " N%d=", node);
		field = line ? strstr(line, name) : NULL;
		nodes[node] = field ? strtol(field + strlen(name), NULL, 10) / (long)psize() : 0;
	}
}

/* What memory.stat says, without nodes. */
static long memcg_mapped(const char *cgroup)
{
	static char buf[16384];
	char path[128], *field;

	flush_stats(cgroup);
	snprintf(path, sizeof(path), "%s/memory.stat", cgroup);
	read_file(path, buf, sizeof(buf));
	field = strstr(buf, "\nfile_mapped ");
	return field ? strtol(field + strlen("\nfile_mapped "), NULL, 10) / (long)psize() : -1;
}

static long field_kb(const char *path, const char *field)
{
	static char buf[8192];
	char *found;

	read_file(path, buf, sizeof(buf));
	found = strstr(buf, field);
	return found ? strtol(found + strlen(field), NULL, 10) : -1;
}

static void read_counts(struct counts *counts)
{
	memset(counts, 0, sizeof(*counts));
	for (int i = 0; i < NR_CGROUPS; i++)
		read_memcg(cgroups[i], counts->memcgs[i]);
	counts->rss = field_kb("/proc/self/status", "RssFile:");
	try_write(REFRESH_FILE, "1");
	counts->mapped = field_kb("/proc/meminfo", "\nMapped:");
	for (int node = 0; node < MAX_NODES; node++)
		counts->nodes[node] = node_mapped(node);
}

/* Is @page in one of the node's, as move_pages() tells it? */
static int node_of(char *mem, size_t page)
{
	void *addr = mem + page * psize();
	int node = -1;

	if (syscall(SYS_move_pages, 0, 1UL, &addr, NULL, &node, 0))
		return 0;
	return node < 0 ? 0 : node;
}

/* The file */

static bool write_pages(int fd, size_t page, size_t nr)
{
	static char buf[WINDOW * 65536];

	memset(buf, 0, nr * psize());
	for (size_t i = 0; i < nr; i++)
		*(__u64 *)(buf + i * psize()) = OLD + page + i;
	return pwrite(fd, buf, nr * psize(), page * psize()) == (ssize_t)(nr * psize());
}

/* The size of the folio that starts at @page, in pages. */
static size_t folio_pages(enum folios folios, size_t page)
{
	if (folios == LARGE)
		return WINDOW;
	return folios == MIXED && page % 8 == 4 ? 4 : 1;
}

/* A folio is as large as what is written to, when nothing is there. */
static bool write_file_pages(int fd, enum folios folios, size_t from, size_t to)
{
	bool written = true;

	for (size_t i = from; i < to && written; i += folio_pages(folios, i))
		written = write_pages(fd, i, folio_pages(folios, i));
	/* A folio that is locked to be written back is not mapped. */
	return written && !fsync(fd);
}

static bool in_large_folio(enum folios folios, size_t page)
{
	return folios == LARGE || (folios == MIXED && page % 8 >= 4);
}

static bool starts_folio(enum folios folios, size_t page)
{
	return folios == SMALL || page % (folios == LARGE ? WINDOW : 4) == 0;
}

static int open_file(bool ext4)
{
	static const char * const dirs[] = { ".", "ext4" };
	char path[64];
	int fd;

	if (!ext4) {
		mkdir(TMPFS_DIR, 0700);
		if (mount("none", TMPFS_DIR, "tmpfs", 0, "huge=within_size"))
			return -1;
	}
	for (int i = 0; i < 2; i++) {
		const char *dir = ext4 ? dirs[i] : TMPFS_DIR;
		struct statfs fs;

		if (statfs(dir, &fs) || fs.f_type != (ext4 ? EXT4_SUPER_MAGIC : TMPFS_MAGIC))
			continue;
		snprintf(path, sizeof(path), "%s/fault_around.XXXXXX", dir);
		fd = mkstemp(path);
		if (fd >= 0)
			unlink(path);
		return fd;
	}
	return -1;
}

/* Pages */

static bool present(struct _test_data_fault_around *self, size_t page)
{
	return pagemap_get_entry(self->pagemap_fd, self->mem + page * psize()) & PM_PRESENT;
}

static size_t count_present(struct _test_data_fault_around *self, size_t from, size_t to)
{
	size_t nr = 0;

	for (size_t i = from; i < to; i++)
		nr += present(self, i);
	return nr;
}

static __u64 flags_of(struct _test_data_fault_around *self, size_t page)
{
	return kpageflags(self->kpageflags_fd,
			  pagemap_get_pfn(self->pagemap_fd, self->mem + page * psize()));
}

/*
 * Expect that the pages of a file in [@from, @to), and no others, are mapped, hold what
 * was written, and are counted for the memcgs and nodes that they are of.
 */
static void expect_mapped(struct __test_metadata *_metadata,
			  struct _test_data_fault_around *self, size_t from, size_t to)
{
	long nodes[MAX_NODES], expected[MAX_NODES] = {};

	EXPECT_EQ(count_present(self, 0, NR), to - from);
	EXPECT_EQ(count_present(self, from, to), to - from);
	EXPECT_EQ(smaps_bytes(self->mem, "Rss:"), (to - from) * psize());
	for (size_t i = from; i < to; i++) {
		EXPECT_EQ(get(self->mem, i), OLD + i);
		expected[node_of(self->mem, i)]++;
	}
	read_memcg(cgroups[0], nodes);
	for (int node = 0; node < MAX_NODES; node++)
		EXPECT_EQ(nodes[node], expected[node]);
}

static long read_faults(char *mem, size_t page)
{
	long before;

	minor_faults();
	before = minor_faults();
	get(mem, page);
	return minor_faults() - before;
}

/* Read @page, and return the signal that is raised. */
static int try_read(char *mem, size_t page)
{
	int sig;

	signal(SIGBUS, fault_handler);
	signal(SIGSEGV, fault_handler);
	sig = sigsetjmp(fault_jump, 1);
	if (!sig)
		get(mem, page);
	signal(SIGBUS, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	return sig;
}

/* Map the pages from @from on of the file, with @prot, at their place. */
static void map_part(struct __test_metadata *_metadata,
		     struct _test_data_fault_around *self, int flags, int prot,
		     size_t from, size_t nr)
{
	char *addr = self->mem + from * psize();

	ASSERT_EQ(mmap(addr, nr * psize(), prot, MAP_FIXED | flags, self->fd,
		       from * psize()), addr);
}

static void unmap(struct __test_metadata *_metadata, struct _test_data_fault_around *self)
{
	/* To address space that nobody else takes. */
	ASSERT_EQ(mmap(self->mem, self->size, PROT_NONE,
		       MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
		  self->mem);
}

/* Are folios as large as they were meant to be? */
static bool folios_are(struct _test_data_fault_around *self, enum folios folios)
{
	const __u64 compound = KPF_COMPOUND_HEAD | KPF_COMPOUND_TAIL;
	__u64 expected;

	if (madvise(self->mem, self->size, MADV_POPULATE_READ))
		return false;
	for (size_t i = 0; i < NR; i++) {
		expected = !in_large_folio(folios, i) ? 0 :
			   starts_folio(folios, i) ? KPF_COMPOUND_HEAD : KPF_COMPOUND_TAIL;
		if ((flags_of(self, i) & compound) != expected)
			return false;
	}
	return true;
}

/* What a page table maps. There need not be huge pages that would tell it. */
static size_t table_size(void)
{
	return psize() / sizeof(__u64) * psize();
}

FIXTURE_SETUP(fault_around)
{
	const size_t pmd = table_size();
	const char *reason;

	self->area = MAP_FAILED;
	self->fd = -1;
	self->pagemap_fd = -1;
	self->kpageflags_fd = -1;
	if (geteuid())
		SKIP(return, "needs to be root");
	if (!saved_window[0])
		SKIP(return, "no %s", FAULT_AROUND_FILE);
	ASSERT_EQ(unshare(CLONE_NEWNS), 0);
	ASSERT_EQ(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	reason = make_cgroups();
	if (reason)
		SKIP(return, "%s", reason);
	ASSERT_TRUE(join(cgroups[0]));
	self->fd = open_file(variant->ext4);
	if (self->fd < 0)
		SKIP(return, "no file on %s", variant->ext4 ? "ext4" : "tmpfs");
	self->pagemap_fd = open("/proc/self/pagemap", O_RDONLY);
	ASSERT_GE(self->pagemap_fd, 0);
	self->kpageflags_fd = open("/proc/kpageflags", O_RDONLY);
	ASSERT_GE(self->kpageflags_fd, 0);

	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
	self->size = NR * psize();
	self->area_size = 3 * pmd;
	self->area = reserve_area(_metadata, self->area_size);
	self->mem = next_pmd(self->area, pmd);
	map_part(_metadata, self, variant->map_flags, PROT_READ, 0, NR);
	if (!folios_are(self, variant->folios))
		SKIP(return, "no folios of this size");
	unmap(_metadata, self);
}

FIXTURE_TEARDOWN(fault_around)
{
	if (self->area != MAP_FAILED)
		munmap(self->area, self->area_size);
	close(self->fd);
	close(self->pagemap_fd);
	close(self->kpageflags_fd);
	umount2(TMPFS_DIR, MNT_DETACH);
	leave_cgroups();
	umount2(CGROUP_DIR, MNT_DETACH);
}

typedef void (*case_fn)(struct __test_metadata *_metadata,
			struct _test_data_fault_around *self,
			const struct _fixture_variant_fault_around *variant);

/* Run what maps and unmaps pages; all is counted as before in the end. */
static void run_case(struct __test_metadata *_metadata,
		     struct _test_data_fault_around *self,
		     const struct _fixture_variant_fault_around *variant, case_fn fn)
{
	struct counts before, after;

	for (int i = 0; i < TRIES; i++) {
		read_counts(&before);
		fn(_metadata, self, variant);
		unmap(_metadata, self);
		read_counts(&after);
		if (!memcmp(&before, &after, sizeof(before)))
			break;
	}
	EXPECT_EQ(before.rss, after.rss);
	EXPECT_EQ(before.mapped, after.mapped);
	for (int node = 0; node < MAX_NODES; node++) {
		EXPECT_EQ(before.nodes[node], after.nodes[node]);
		for (int i = 0; i < NR_CGROUPS; i++)
			EXPECT_EQ(before.memcgs[i][node], after.memcgs[i][node]);
	}
}

#define FAULT_AROUND_TEST(name)							\
	static void case_##name(struct __test_metadata *_metadata,		\
			struct _test_data_fault_around *self,			\
			const struct _fixture_variant_fault_around *variant);		\
	TEST_F_TIMEOUT(fault_around, name, TIMEOUT)				\
	{									\
		run_case(_metadata, self, variant, case_##name);		\
	}									\
	static void case_##name(struct __test_metadata *_metadata,		\
			struct _test_data_fault_around *self,			\
			const struct _fixture_variant_fault_around *variant)

static void map_file(struct __test_metadata *_metadata,
		     struct _test_data_fault_around *self,
		     const struct _fixture_variant_fault_around *variant, int prot)
{
	map_part(_metadata, self, variant->map_flags, prot, 0, NR);
}

/*
 * What is mapped
 */

FAULT_AROUND_TEST(window)
{
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	expect_mapped(_metadata, self, FIRST, FIRST + WINDOW);
	for (size_t i = FIRST; i < FIRST + WINDOW; i++)
		EXPECT_EQ(read_faults(self->mem, i), 0);
}

FAULT_AROUND_TEST(whole_file)
{
	long faults = 0;

	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < NR; i++)
		faults += read_faults(self->mem, i);
	EXPECT_EQ(faults, NR / WINDOW);
	expect_mapped(_metadata, self, 0, NR);
	EXPECT_EQ(memcg_mapped(cgroups[0]), NR);
}

/* One allocation after the other fails; there is no page table when the fault comes. */
FAULT_AROUND_TEST(each_alloc_fails)
{
	bool failed = true;
	int fd, nth;

	if (!may_fail_each())
		SKIP(return, "no fault injection for page allocation");
	for (nth = 0; failed && nth < MAX_ALLOCATIONS; nth++) {
		munmap(self->area, self->area_size);
		map_file(_metadata, self, variant, PROT_READ);
		fd = fail_nth(nth + 1);
		get(self->mem, FAULT);
		failed = has_failed(fd);
		expect_mapped(_metadata, self, FIRST, FIRST + WINDOW);
	}
	EXPECT_FALSE(failed);
	EXPECT_GT(nth, 1);
}

/*
 * The mapping starts behind the start of the window, and of a large folio: the window
 * starts there, too.  A large folio that it ends in is mapped as a whole.
 */
FAULT_AROUND_TEST(starts_in_window)
{
	size_t end = ODD + WINDOW;

	while (in_large_folio(variant->folios, end) && !starts_folio(variant->folios, end))
		end++;
	map_part(_metadata, self, variant->map_flags, PROT_READ, ODD, NR - ODD);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_EQ(count_present(self, 0, NR), end - ODD);
	EXPECT_EQ(count_present(self, ODD, end), end - ODD);
	EXPECT_EQ(memcg_mapped(cgroups[0]), end - ODD);
	for (size_t i = ODD; i < end; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
}

FAULT_AROUND_TEST(ends_in_window)
{
	map_part(_metadata, self, variant->map_flags, PROT_READ, 0, FAULT + 1);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_EQ(count_present(self, 0, NR), FAULT + 1 - FIRST);
	EXPECT_EQ(memcg_mapped(cgroups[0]), FAULT + 1 - FIRST);
	for (size_t i = FIRST; i < FAULT + 1; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
}

/* Nothing is mapped behind the end of the file, where an access is an error. */
FAULT_AROUND_TEST(file_ends_in_window)
{
	ASSERT_EQ(ftruncate(self->fd, (FAULT + 1) * psize()), 0);
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(read_faults(self->mem, FIRST), 1);
	EXPECT_EQ(count_present(self, FIRST, FAULT + 1), FAULT + 1 - FIRST);
	EXPECT_EQ(try_read(self->mem, FAULT), 0);
	EXPECT_EQ(try_read(self->mem, FAULT + 1), SIGBUS);
	EXPECT_EQ(try_read(self->mem, FIRST + WINDOW), SIGBUS);
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));
	for (size_t i = FIRST; i < FAULT + 1; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
	unmap(_metadata, self);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
}

/* The folio goes on behind the end of the file: its pages there are not mapped. */
FAULT_AROUND_TEST(file_ends_in_folio)
{
	unsigned long pfn;

	if (variant->ext4 || variant->folios != LARGE)
		SKIP(return, "no folios across the end of the file");
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	ASSERT_EQ(mount(NULL, TMPFS_DIR, NULL, MS_REMOUNT, "huge=always"), 0);
	ASSERT_TRUE(write_file_pages(self->fd, SMALL, 0, FAULT + 1));
	ASSERT_EQ(mount(NULL, TMPFS_DIR, NULL, MS_REMOUNT, "huge=within_size"), 0);
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(try_read(self->mem, FIRST), 0);
	pfn = pagemap_get_pfn(self->pagemap_fd, self->mem + FAULT * psize());
	EXPECT_TRUE(kpageflags(self->kpageflags_fd, pfn + 1) & KPF_COMPOUND_TAIL);
	EXPECT_EQ(count_present(self, 0, NR), FAULT + 1 - FIRST);
	EXPECT_EQ(count_present(self, FIRST, FAULT + 1), FAULT + 1 - FIRST);
	EXPECT_EQ(memcg_mapped(cgroups[0]), FAULT + 1 - FIRST);
	EXPECT_EQ(try_read(self->mem, FAULT + 1), SIGBUS);
	unmap(_metadata, self);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
}

/*
 * What is in the window already
 */

/* Another page of the window is mapped: it is not mapped, or counted, twice. */
FAULT_AROUND_TEST(present_inside)
{
	map_file(_metadata, self, variant, PROT_READ);
	get(self->mem, ODD);
	ASSERT_EQ(madvise(self->mem, ODD * psize(), MADV_DONTNEED), 0);
	ASSERT_EQ(madvise(self->mem + (ODD + 1) * psize(), (NR - ODD - 1) * psize(),
			  MADV_DONTNEED), 0);
	expect_mapped(_metadata, self, ODD, ODD + 1);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	expect_mapped(_metadata, self, FIRST, FIRST + WINDOW);
}

/* The window has a marker: it stays, and what is on both sides is mapped. */
FAULT_AROUND_TEST(marker_inside)
{
	map_file(_metadata, self, variant, PROT_READ);
	if (madvise(self->mem + ODD * psize(), psize(), MADV_GUARD_INSTALL))
		SKIP(return, "no guard regions in files");
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_EQ(count_present(self, FIRST, FIRST + WINDOW), WINDOW - 1);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW - 1);
	EXPECT_EQ(try_read(self->mem, ODD), SIGSEGV);
	for (size_t i = FIRST; i < FIRST + WINDOW; i++)
		if (i != ODD)
			EXPECT_EQ(get(self->mem, i), OLD + i);
}

/* A page of the window was written to: the copy of a private mapping stays. */
FAULT_AROUND_TEST(written_inside)
{
	const bool shared = variant->map_flags == MAP_SHARED;

	map_file(_metadata, self, variant, PROT_READ | PROT_WRITE);
	put(self->mem, ODD, NEW);
	ASSERT_EQ(madvise(self->mem, ODD * psize(), MADV_DONTNEED), 0);
	ASSERT_EQ(madvise(self->mem + (ODD + 1) * psize(), (NR - ODD - 1) * psize(),
			  MADV_DONTNEED), 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), shared);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_EQ(count_present(self, FIRST, FIRST + WINDOW), WINDOW);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW - !shared);
	EXPECT_EQ(get(self->mem, ODD), NEW);
	put(self->mem, ODD, OLD + ODD);
}

/* There is no page for the address itself, which is found after the others. */
FAULT_AROUND_TEST(hole_at_address)
{
	if (variant->folios != SMALL)
		SKIP(return, "large folios have no holes");
	ASSERT_EQ(fallocate(self->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			    FAULT * psize(), psize()), 0);
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(try_read(self->mem, FAULT), 0);
	EXPECT_EQ(get(self->mem, FAULT), 0);
	EXPECT_EQ(count_present(self, 0, NR), WINDOW);
	EXPECT_EQ(count_present(self, FIRST, FIRST + WINDOW), WINDOW);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW);
	for (size_t i = FIRST; i < FIRST + WINDOW; i++)
		if (i != FAULT)
			EXPECT_EQ(get(self->mem, i), OLD + i);
	unmap(_metadata, self);
	ASSERT_TRUE(write_pages(self->fd, FAULT, 1));
	ASSERT_EQ(fsync(self->fd), 0);
}

FAULT_AROUND_TEST(hole_beside_address)
{
	if (variant->folios != SMALL)
		SKIP(return, "large folios have no holes");
	ASSERT_EQ(fallocate(self->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			    ODD * psize(), psize()), 0);
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_FALSE(present(self, ODD));
	EXPECT_EQ(count_present(self, 0, NR), WINDOW - 1);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW - 1);
	EXPECT_EQ(get(self->mem, ODD), 0);
	EXPECT_EQ(count_present(self, 0, NR), WINDOW);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW);
	unmap(_metadata, self);
	ASSERT_TRUE(write_pages(self->fd, ODD, 1));
	ASSERT_EQ(fsync(self->fd), 0);
}

/*
 * Have the kernel take @page for broken; if it was dirty, a signal says that data is
 * lost.  Returns its number in physical memory.
 */
static unsigned long poison(struct _test_data_fault_around *self, size_t page)
{
	static unsigned long pfn;

	get(self->mem, page);
	pfn = pagemap_get_pfn(self->pagemap_fd, self->mem + page * psize());
	signal(SIGBUS, fault_handler);
	if (!sigsetjmp(fault_jump, 1) &&
	    madvise(self->mem + page * psize(), psize(), MADV_HWPOISON))
		pfn = 0;
	signal(SIGBUS, SIG_DFL);
	return pfn;
}

/*
 * A poisoned page of tmpfs stays where it is.  The others of the window are mapped,
 * whether the address is that of the page or not.
 */
FAULT_AROUND_TEST(poisoned_page)
{
	unsigned long pfn;

	if (variant->ext4)
		SKIP(return, "poisoned pages do not stay in the page cache");
	map_file(_metadata, self, variant, PROT_READ);
	pfn = poison(self, ODD);
	if (!pfn)
		SKIP(return, "no MADV_HWPOISON");
	unmap(_metadata, self);
	map_file(_metadata, self, variant, PROT_READ);
	EXPECT_EQ(read_faults(self->mem, FAULT), 1);
	EXPECT_FALSE(present(self, ODD));
	EXPECT_EQ(count_present(self, FIRST, FIRST + WINDOW), WINDOW - 1);
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));

	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	EXPECT_EQ(try_read(self->mem, ODD), SIGBUS);
	EXPECT_EQ(count_present(self, FIRST, FIRST + WINDOW), WINDOW - 1);
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));
	for (size_t i = FIRST; i < FIRST + WINDOW; i++)
		if (i != ODD)
			EXPECT_EQ(get(self->mem, i), OLD + i);
	unmap(_metadata, self);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	EXPECT_EQ(unpoison_memory(pfn), 0);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
}

/*
 * Whose pages they are
 */

/* Write the file again, each folio of it by the next cgroup or on the next node. */
static void write_in_turn(struct __test_metadata *_metadata,
			  struct _test_data_fault_around *self, enum folios folios,
			  void (*turn)(size_t i))
{
	size_t nr = 0;

	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	for (size_t i = 0; i < NR; i += folio_pages(folios, i)) {
		turn(nr++);
		ASSERT_TRUE(write_pages(self->fd, i, folio_pages(folios, i)));
	}
	turn(0);
	ASSERT_EQ(fsync(self->fd), 0);
}

static void join_in_turn(size_t i)
{
	join(cgroups[i % NR_CGROUPS]);
}

/* The pages in [@from, @to) of folios that the first cgroup had written. */
static long of_first_cgroup(enum folios folios, size_t from, size_t to)
{
	size_t nr = 0;
	long pages = 0;

	for (size_t i = 0; i < NR; i += folio_pages(folios, i), nr++)
		if (i >= from && i < to && nr % NR_CGROUPS == 0)
			pages += folio_pages(folios, i);
	return pages;
}

FAULT_AROUND_TEST(memcgs_in_turn)
{
	long first;

	write_in_turn(_metadata, self, variant->folios, join_in_turn);
	map_file(_metadata, self, variant, PROT_READ);
	get(self->mem, FAULT);
	first = of_first_cgroup(variant->folios, FIRST, FIRST + WINDOW);
	EXPECT_EQ(memcg_mapped(cgroups[0]), first);
	EXPECT_EQ(memcg_mapped(cgroups[1]), WINDOW - first);
	for (size_t i = 0; i < NR; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
	first = of_first_cgroup(variant->folios, 0, NR);
	EXPECT_EQ(memcg_mapped(cgroups[0]), first);
	EXPECT_EQ(memcg_mapped(cgroups[1]), NR - first);
	/* Not all of them at once. */
	ASSERT_EQ(madvise(self->mem, FIRST * psize(), MADV_DONTNEED), 0);
	first = of_first_cgroup(variant->folios, FIRST, NR);
	EXPECT_EQ(memcg_mapped(cgroups[0]), first);
	EXPECT_EQ(memcg_mapped(cgroups[1]), NR - FIRST - first);
	unmap(_metadata, self);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
	EXPECT_EQ(memcg_mapped(cgroups[1]), 0);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
}

static void bind_in_turn(size_t i)
{
	unsigned long mask = 1UL << (i % 2);

	syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 8 * sizeof(mask));
}

FAULT_AROUND_TEST(nodes_in_turn)
{
	if (node_mapped(1) <= 0)
		SKIP(return, "there is one node only");
	write_in_turn(_metadata, self, variant->folios, bind_in_turn);
	syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < NR; i++)
		get(self->mem, i);
	EXPECT_NE(node_of(self->mem, 0),
		  node_of(self->mem, folio_pages(variant->folios, 0)));
	expect_mapped(_metadata, self, 0, NR);
	ASSERT_EQ(madvise(self->mem, FIRST * psize(), MADV_DONTNEED), 0);
	expect_mapped(_metadata, self, FIRST, NR);
	unmap(_metadata, self);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
}

/* Who maps it besides: a page is counted once, until the last one is gone. */
FAULT_AROUND_TEST(two_processes)
{
	struct child child;

	map_file(_metadata, self, variant, PROT_READ);
	get(self->mem, FAULT);
	if (!child_fork(_metadata, &child)) {
		bool good = true;

		for (size_t i = 0; i < NR; i++)
			good = good && get(self->mem, i) == OLD + i;
		child_pause(&child);
		_exit(!good);
	}
	child_started(_metadata, &child);
	EXPECT_EQ(memcg_mapped(cgroups[0]), NR);
	unmap(_metadata, self);
	EXPECT_EQ(memcg_mapped(cgroups[0]), NR);
	child_finish(_metadata, &child);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
}

FAULT_AROUND_TEST(mapped_twice)
{
	/* Where windows are the same. */
	char *other = self->mem + table_size();

	map_file(_metadata, self, variant, PROT_READ);
	ASSERT_EQ(mmap(other, self->size, PROT_READ, MAP_FIXED | variant->map_flags,
		       self->fd, 0), other);
	get(other, FAULT);
	get(self->mem, FAULT);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW);
	unmap(_metadata, self);
	EXPECT_EQ(memcg_mapped(cgroups[0]), WINDOW);
	EXPECT_EQ(get(other, FAULT), OLD + FAULT);
	munmap(other, self->size);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
}

/* Pages of a locked mapping are locked, also those that no one has read. */
FAULT_AROUND_TEST(mlocked)
{
	map_file(_metadata, self, variant, PROT_READ);
	if (mlock2(self->mem, self->size, MLOCK_ONFAULT))
		SKIP(return, "cannot lock memory");
	get(self->mem, FAULT);
	/* Locks of pages are batched; this one completes them. */
	ASSERT_EQ(mlock(self->area, psize()), -1);
	ASSERT_EQ(mlock(&self->fd, 1), 0);
	ASSERT_EQ(munlock(&self->fd, 1), 0);
	for (size_t i = FIRST; i < FIRST + WINDOW; i++)
		EXPECT_TRUE(flags_of(self, i) & KPF_MLOCKED);
	expect_mapped(_metadata, self, FIRST, FIRST + WINDOW);
}

/*
 * How they go
 */

/* Stores to some of the pages, before and after the window is mapped. */
FAULT_AROUND_TEST(stores)
{
	const bool shared = variant->map_flags == MAP_SHARED;

	map_file(_metadata, self, variant, PROT_READ | PROT_WRITE);
	for (size_t i = 1; i < NR; i += 4)
		put(self->mem, i, OLD + i);
	for (size_t i = 0; i < NR; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
	for (size_t i = 2; i < NR; i += 4)
		put(self->mem, i, OLD + i);
	EXPECT_EQ(count_present(self, 0, NR), NR);
	EXPECT_EQ(memcg_mapped(cgroups[0]), shared ? NR : NR / 2);
	ASSERT_EQ(madvise(self->mem, self->size / 2, MADV_DONTNEED), 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), shared ? NR / 2 : NR / 4);
}

/* Some go before the others, from the middle of folios. */
FAULT_AROUND_TEST(dontneed)
{
	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < NR; i++)
		get(self->mem, i);
	for (size_t i = 0; i < NR; i += 3) {
		ASSERT_EQ(madvise(self->mem + i * psize(), psize(), MADV_DONTNEED), 0);
		EXPECT_FALSE(present(self, i));
	}
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));
	ASSERT_EQ(madvise(self->mem, self->size, MADV_DONTNEED), 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
}

FAULT_AROUND_TEST(truncate)
{
	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < NR; i++)
		get(self->mem, i);
	ASSERT_EQ(ftruncate(self->fd, FIRST * psize()), 0);
	expect_mapped(_metadata, self, 0, FIRST);
	ASSERT_EQ(ftruncate(self->fd, 0), 0);
	EXPECT_EQ(count_present(self, 0, NR), 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
	EXPECT_EQ(try_read(self->mem, 0), SIGBUS);
	ASSERT_TRUE(write_file_pages(self->fd, variant->folios, 0, NR));
	get(self->mem, 0);
	expect_mapped(_metadata, self, 0, WINDOW);
}

FAULT_AROUND_TEST(reclaim)
{
	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < NR; i++)
		get(self->mem, i);
	ASSERT_EQ(madvise(self->mem, self->size, MADV_PAGEOUT), 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));
	for (size_t i = 0; i < NR; i++)
		EXPECT_EQ(get(self->mem, i), OLD + i);
}

FAULT_AROUND_TEST(exit)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		map_file(_metadata, self, variant, PROT_READ);
		for (size_t i = 0; i < NR; i++)
			get(self->mem, i);
		_exit(0);
	}
	expect_exit(_metadata, pid);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
}

/*
 * Races: threads read and drop, others truncate and write, or reclaim.
 */

struct racer {
	struct _test_data_fault_around *self;
	enum folios folios;
	bool stop;
	size_t bad;
};

static bool stopped(struct racer *racer)
{
	return __atomic_load_n(&racer->stop, __ATOMIC_RELAXED);
}

static void check_word(struct racer *racer, size_t page, __u64 value)
{
	/* Between truncation and write, the file is shorter, or has holes. */
	if (value && value != OLD + page)
		__atomic_fetch_add(&racer->bad, 1, __ATOMIC_RELAXED);
}

static void *read_and_drop(void *arg)
{
	struct racer *racer = arg;
	char *mem = racer->self->mem;
	__u64 value;

	for (size_t i = 0; !stopped(racer); i++) {
		const size_t page = shuffled_page(i, NR);
		const struct iovec from = { mem + page * psize(), sizeof(value) };
		const struct iovec to = { &value, sizeof(value) };

		/* The kernel reads, so that a page that is gone is no signal. */
		if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(value))
			check_word(racer, page, value);
		if (i % 7 == 6)
			madvise(mem, NR * psize(), MADV_DONTNEED);
	}
	return NULL;
}

static void *truncate_and_write(void *arg)
{
	struct racer *racer = arg;

	while (!stopped(racer)) {
		if (ftruncate(racer->self->fd, FIRST * psize()) ||
		    !write_file_pages(racer->self->fd, racer->folios, FIRST, NR))
			__atomic_fetch_add(&racer->bad, 1, __ATOMIC_RELAXED);
		usleep(1000);
	}
	return NULL;
}

static void *reclaim_all(void *arg)
{
	struct racer *racer = arg;

	while (!stopped(racer)) {
		madvise(racer->self->mem, NR * psize(), MADV_PAGEOUT);
		usleep(500);
	}
	return NULL;
}

FAULT_AROUND_TEST(race)
{
	static void *(* const fns[])(void *) = {
		read_and_drop, read_and_drop, truncate_and_write, reclaim_all,
	};
	struct racer racer = { .self = self, .folios = variant->folios };
	pthread_t threads[ARRAY_SIZE(fns)];

	map_file(_metadata, self, variant, PROT_READ);
	for (size_t i = 0; i < ARRAY_SIZE(fns); i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, fns[i], &racer), 0);
	sleep(RACE_SECONDS);
	__atomic_store_n(&racer.stop, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < ARRAY_SIZE(fns); i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
	EXPECT_EQ(racer.bad, 0);
	EXPECT_EQ(memcg_mapped(cgroups[0]), count_present(self, 0, NR));
	unmap(_metadata, self);
	EXPECT_EQ(memcg_mapped(cgroups[0]), 0);
}

int main(int argc, char **argv)
{
	char window[32];

	/* What the program needs is not to be charged to the cgroups of the tests. */
	mlockall(MCL_CURRENT);
	munlockall();

	/* Here, so that it is restored even if a test is killed. */
	if (!geteuid() && !access(FAULT_AROUND_FILE, R_OK | W_OK)) {
		read_setting(FAULT_AROUND_FILE, saved_window, sizeof(saved_window));
		save_settings(NULL, 0);
		atexit(restore);
		snprintf(window, sizeof(window), "%lu", (unsigned long)WINDOW * psize());
		write_setting(FAULT_AROUND_FILE, window);
	}
	return test_harness_run(argc, argv);
}
