// SPDX-License-Identifier: GPL-2.0
/*
 * The switches in debugfs that choose among the policies of cow_policy.h, for
 * measuring one against the other.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "cow_policy.h"

static unsigned int cow_reuse __read_mostly = COW_REUSE_RUN;

enum cow_reuse cow_reuse_policy(void)
{
	return READ_ONCE(cow_reuse);
}

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
	.value		= &cow_reuse,
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

static int __init cow_debugfs(void)
{
	struct dentry *dir = debugfs_create_dir("cow", NULL);

	debugfs_create_file("reuse", 0644, dir, (void *)&cow_reuse_choice,
			    &cow_choice_fops);
	return 0;
}
late_initcall(cow_debugfs);
