#!/usr/bin/env bash
# Makes light.tar: a guest that boots in two seconds under software emulation, for tests and benchmarks that start
# many at once. Its disk has one file system; it reads 8 MiB of its 24, prints a line, and answers what it is told.
#
#   vmlinuz, initrd.img   the kernel of kernel.sh, and a shell that enters the disk: /dev/vda, or /dev/pmem0
#   disk.raw              the disk
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
"$here/kernel.sh"
out=$IMAGES/light.tar
made_by=("$here/light.sh" "$here/light-initrd" "$here/light-guest" "$IMAGES/kernel.tar.recipe")
kept "$out" "${made_by[@]}" && exit

need busybox=busybox-static mkfs.ext4=e2fsprogs cpio=cpio
say "making a light guest"
work=$(mktemp -d "$IMAGES/light.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p light initrd/{bin,dev,proc,sys,root} root/{bin,dev,proc,sys,read,unread}
tar -xf "$IMAGES/kernel.tar"
(cd initrd && cpio --quiet -id modules/* < <(gzip -dc ../initrd.img))
cp modules/{libnvdimm,nd_btt,nd_pmem,nd_virtio,virtio_pmem}.ko initrd/modules
cp "$(command -v busybox)" initrd/bin
install -m 755 "$here/light-initrd" initrd/init
(cd initrd && find . | sort | cpio --quiet -o -H newc | gzip -n) >light/initrd.img
mv vmlinuz light

cp "$(command -v busybox)" root/bin
install -m 755 "$here/light-guest" root/init
# What the boot reads lies among what it does not read. The same bytes each time: no two blocks are alike.
noise() { openssl enc -aes-128-ctr -pass "pass:$1" -nosalt -in /dev/zero 2>/dev/null | head -c "$2" || true; }
for number in $(seq -w 32); do
    noise "$number" 256K >"root/read/$number"
    noise "not $number" 384K >"root/unread/$number"
done
mkfs.ext4 -q -F -b 4096 -m 0 -O '^has_journal,^resize_inode' -E lazy_itable_init=0,nodiscard -d root light/disk.raw 24M
tar -cf light.tar -C light vmlinuz initrd.img disk.raw
keep light.tar "$out" "${made_by[@]}"
