#!/bin/sh
# fault_around_bench.sh ARGUMENT... - in the guest: run fault_around_bench on tmpfs and
# ext4, as a member of the root cgroup and of one three levels below.

mkdir -p /run/tmpfs /run/tmpfs-huge /run/ext4 /run/cgroup || exit
mount -t tmpfs -o huge=never tmpfs /run/tmpfs || exit
mount -t tmpfs -o huge=within_size tmpfs /run/tmpfs-huge || exit
mount -t ext4 -o loop ext4.img /run/ext4 || exit
mount -t cgroup2 cgroup2 /run/cgroup || exit
./fault_around_bench "$@" tmpfs=/run/tmpfs tmpfs-huge=/run/tmpfs-huge ext4=/run/ext4 || exit

dir=/run/cgroup
for level in a b c; do
	echo +memory >$dir/cgroup.subtree_control || exit
	dir=$dir/$level
	mkdir $dir || exit
done
echo $$ >$dir/cgroup.procs || exit
exec ./fault_around_bench "$@" tmpfs-nested=/run/tmpfs tmpfs-huge-nested=/run/tmpfs-huge \
	ext4-nested=/run/ext4
