#!/usr/bin/env bash
# Makes kernel.tar: a Linux that has FUSE passthrough (6.9 or later) for virtual machines, with an
# initramfs that enters a disk's own init, and the modules for memory that keeps its content and for ublk devices.
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
out=$IMAGES/kernel.tar
made_by=("$here/kernel.sh" "$here/mini-init.c")
kept "$out" "${made_by[@]}" && exit

need cc=build-essential cpio=cpio xz=xz-utils
mkdir -p "$IMAGES"
work=$(mktemp -d "$IMAGES/kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

# Debian 12 has Linux 6.1, and its backports go when it does: Debian 13's 6.12 stays for longer. Read
# with lists of our own, so that nothing on this machine is upgraded to it; signed as all of Debian.
mkdir -p lists/partial cache/archives/partial
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${MIRROR:-http://deb.debian.org/debian} trixie main" >sources.list
export APT_CONFIG=$work/apt.conf
cat >apt.conf <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
Acquire::Retries "3";
END
say "fetching a kernel with FUSE passthrough (downloads 45 MB)"
apt-get update -q >&2 || die "apt-get update failed: is the Debian mirror reachable?"
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
apt-get download -q "${kernel:?no kernel in Debian 13}" >&2
dpkg-deb -x linux-image-*.deb unpacked

# What is built in is no file, and need not be loaded.
modules=$(echo unpacked/usr/lib/modules/*/kernel)
mkdir -p initrd/modules kernel/modules
unpack() { # MODULE DIR
    [ ! -e "$modules/$1.ko.xz" ] || xz -dc "$modules/$1.ko.xz" >"$2/${1##*/}.ko"
}
for name in virtio{,_ring,_pci,_pci_modern_dev,_pci_legacy_dev}; do unpack "drivers/virtio/$name" initrd/modules; done
unpack drivers/block/virtio_blk initrd/modules
for name in nvdimm/{libnvdimm,nd_btt,nd_pmem,nd_virtio,virtio_pmem} acpi/nfit/nfit; do
    unpack "drivers/$name" kernel/modules
done
unpack fs/fuse/fuse kernel/modules
unpack drivers/block/ublk_drv kernel/modules
[ -e kernel/modules/nd_pmem.ko ] && [ -e kernel/modules/ublk_drv.ko ] || die "$kernel keeps its modules elsewhere, or not as .ko.xz"
grep -q '^CONFIG_FUSE_PASSTHROUGH=y' unpacked/boot/config-* || die "$kernel has no FUSE passthrough"
cc -O2 -static -Wall -o initrd/init "$here/mini-init.c" || die "cannot compile mini-init.c (is libc6-dev there?)"
(cd initrd && find . | cpio --quiet -o -H newc | gzip -n) >kernel/initrd.img
cp unpacked/boot/vmlinuz-* kernel/vmlinuz
tar -cf kernel.tar -C kernel vmlinuz initrd.img modules
keep kernel.tar "$out" "${made_by[@]}"
