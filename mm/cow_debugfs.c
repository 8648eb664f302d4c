// SPDX-License-Identifier: GPL-2.0
/*
 * The switches in debugfs that choose among the policies of cow_policy.h, for
 * measuring one against the other.
 */
#include <linux/debugfs.h>
#include <linux/kstrtox.h>
#include <linux/log2.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "cow_policy.h"

unsigned int cow_active_reuse __read_mostly = COW_REUSE_RUN;
unsigned int cow_active_copy __read_mostly = COW_COPY_ADAPTIVE;
unsigned int cow_active_copy_max_order __read_mostly = COW_COPY_MAX_ORDER;
unsigned int cow_active_keep_min_percent __read_mostly = COW_KEEP_MIN_PERCENT;

struct cow_choice {
	const char * const *names;
	unsigned int nr_names;
	unsigned int *value;
};

static const char * const cow_reuse_names[] = {
	[COW_REUSE_PAGE]	= "page",
	[COW_REUSE_BLOCK]	= "block",
	[COW_REUSE_RUN]		= "run",
};

static const struct cow_choice cow_reuse_choice = {
	.names		= cow_reuse_names,
	.nr_names	= ARRAY_SIZE(cow_reuse_names),
	.value		= &cow_active_reuse,
};

static const char * const cow_copy_names[] = {
	[COW_COPY_NEVER]	= "never",
	[COW_COPY_ADAPTIVE]	= "adaptive",
	[COW_COPY_ALWAYS]	= "always",
};

static const struct cow_choice cow_copy_choice = {
	.names		= cow_copy_names,
	.nr_names	= ARRAY_SIZE(cow_copy_names),
	.value		= &cow_active_copy,
};

static int cow_choice_show(struct seq_file *m, void *v)
{
	const struct cow_choice *choice = m->private;
	const unsigned int active = READ_ONCE(*choice->value);
	unsigned int i;

	for (i = 0; i < choice->nr_names; i++)
		seq_printf(m, i == active ? "%s[%s]" : "%s%s", i ? " " : "",
			   choice->names[i]);
	seq_putc(m, '\n');
	return 0;
}

static int cow_choice_open(struct inode *inode, struct file *file)
{
	return single_open(file, cow_choice_show, inode->i_private);
}

static ssize_t cow_choice_write(struct file *file, const char __user *ubuf,
				size_t count, loff_t *ppos)
{
	const struct seq_file *m = file->private_data;
	const struct cow_choice *choice = m->private;
	char buf[16];
	int i;

	if (count >= sizeof(buf))
		return -EINVAL;
	if (copy_from_user(buf, ubuf, count))
		return -EFAULT;
	buf[count] = '\0';

	i = __sysfs_match_string(choice->names, choice->nr_names, buf);
	if (i < 0)
		return i;
	WRITE_ONCE(*choice->value, i);
	return count;
}

static const struct file_operations cow_choice_fops = {
	.open		= cow_choice_open,
	.read		= seq_read,
	.write		= cow_choice_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

static int cow_number_from_user(const char __user *ubuf, size_t count, u64 *val)
{
	char buf[24];

	if (count >= sizeof(buf))
		return -EINVAL;
	if (copy_from_user(buf, ubuf, count))
		return -EFAULT;
	buf[count] = '\0';
	return kstrtou64(buf, 0, val) ? -EINVAL : 0;
}

static int cow_copy_max_bytes_show(struct seq_file *m, void *v)
{
	seq_printf(m, "%lu\n", PAGE_SIZE << cow_copy_max_order());
	return 0;
}

static int cow_copy_max_bytes_open(struct inode *inode, struct file *file)
{
	return single_open(file, cow_copy_max_bytes_show, NULL);
}

/* A power of two, from a page (which means no block) to half of what a PMD maps. */
static ssize_t cow_copy_max_bytes_write(struct file *file,
					const char __user *ubuf, size_t count,
					loff_t *ppos)
{
	u64 val;
	int err;

	err = cow_number_from_user(ubuf, count, &val);
	if (err)
		return err;
	if (val < PAGE_SIZE || val > PMD_SIZE / 2 || !is_power_of_2(val))
		return -EINVAL;
	WRITE_ONCE(cow_active_copy_max_order, ilog2(val) - PAGE_SHIFT);
	return count;
}

static const struct file_operations cow_copy_max_bytes_fops = {
	.open		= cow_copy_max_bytes_open,
	.read		= seq_read,
	.write		= cow_copy_max_bytes_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

static int cow_keep_min_percent_show(struct seq_file *m, void *v)
{
	seq_printf(m, "%u\n", cow_keep_min_percent());
	return 0;
}

static int cow_keep_min_percent_open(struct inode *inode, struct file *file)
{
	return single_open(file, cow_keep_min_percent_show, NULL);
}

static ssize_t cow_keep_min_percent_write(struct file *file,
					  const char __user *ubuf, size_t count,
					  loff_t *ppos)
{
	u64 val;
	int err;

	err = cow_number_from_user(ubuf, count, &val);
	if (err)
		return err;
	if (val > 100)
		return -EINVAL;
	WRITE_ONCE(cow_active_keep_min_percent, val);
	return count;
}

static const struct file_operations cow_keep_min_percent_fops = {
	.open		= cow_keep_min_percent_open,
	.read		= seq_read,
	.write		= cow_keep_min_percent_write,
	.llseek		= seq_lseek,
	.release	= single_release,
};

static int __init cow_debugfs(void)
{
	struct dentry *dir = debugfs_create_dir("cow", NULL);

	debugfs_create_file("reuse", 0644, dir, (void *)&cow_reuse_choice,
			    &cow_choice_fops);
	debugfs_create_file("copy", 0644, dir, (void *)&cow_copy_choice,
			    &cow_choice_fops);
	debugfs_create_file("copy_max_bytes", 0644, dir, NULL,
			    &cow_copy_max_bytes_fops);
	debugfs_create_file("keep_min_percent", 0644, dir, NULL,
			    &cow_keep_min_percent_fops);
	return 0;
}
late_initcall(cow_debugfs);
