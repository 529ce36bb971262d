#!/usr/bin/env bash
# Makes vm.raw and vm.qcow2: a disk that SeaBIOS boots through extlinux and a Debian kernel up to
# an answering sshd, in some 3 s under software emulation.
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
out=$IMAGES/vm.raw
made_by=("$here/disk.sh" "$here/mini-init.c" "$here/light-init")
kept "$out" "${made_by[@]}" && [ -e "$IMAGES/vm.qcow2" ] && exit

need_root "Making a bootable disk"
need mmdebstrap=mmdebstrap cc=build-essential cpio=cpio mkfs.ext4=e2fsprogs qemu-img=qemu-utils
mkdir -p "$IMAGES"
work=$(mktemp -d "$IMAGES/disk.XXXXXX")
cleanup() { ! mountpoint -q "$work/mnt" || umount "$work/mnt"; rm -rf "$work"; }
trap cleanup EXIT
cd "$work"

say "making a Debian root with sshd (about half a minute, downloads 40 MB)"
mmdebstrap --mode=root --variant=minbase --include=iproute2,openssh-server \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm root ${MIRROR:+"$MIRROR"} >&2 || die "mmdebstrap failed: is the Debian mirror reachable?"

say "fetching a kernel and a boot loader (downloads 30 MB)"
# Unpacked, not installed: a package's scripts would build an initramfs and look for this machine's disks.
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
apt-get download -q "${kernel:?no kernel in apt: run apt-get update}" extlinux syslinux-common >&2
for package in *.deb; do dpkg-deb -x "$package" unpacked; done
modules=$(echo unpacked/lib/modules/*/kernel/drivers)
mkdir -p initrd/modules
cp "$modules"/virtio/virtio{,_ring,_pci,_pci_modern_dev,_pci_legacy_dev}.ko "$modules/block/virtio_blk.ko" initrd/modules
cc -O2 -static -Wall -o initrd/init "$here/mini-init.c" || die "cannot compile mini-init.c (is libc6-dev there?)"
mkdir -p root/boot/extlinux
(cd initrd && find . | cpio --quiet -o -H newc | gzip -n) >root/boot/initrd.img
cp unpacked/boot/vmlinuz-* root/boot/vmlinuz
cp -r unpacked/lib/modules root/lib/
cp unpacked/usr/lib/syslinux/modules/bios/ldlinux.c32 root/boot/extlinux
install -m 755 "$here/light-init" root/usr/local/sbin/light-init
echo "SERIAL 0 115200
DEFAULT debian
LABEL debian
  KERNEL /boot/vmlinuz
  INITRD /boot/initrd.img
  APPEND init=/usr/local/sbin/light-init console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off" >root/boot/extlinux/extlinux.conf

say "making the disk"
# One file system without a partition table, with the features that extlinux can read. Inode
# tables are written now: the guest's kernel would do it lazily, while we count its requests.
mkfs.ext4 -q -F -b 4096 -O '^64bit,^metadata_csum' -E lazy_itable_init=0,lazy_journal_init=0,nodiscard \
    -d root vm.raw 1G
mkdir mnt
mount -o loop vm.raw mnt || die "cannot loop-mount the disk"
unpacked/usr/bin/extlinux --install mnt/boot/extlinux 2>&1 | sed 's/^/    /' >&2
[ -e mnt/boot/extlinux/ldlinux.sys ] || die "extlinux did not install itself"
umount mnt
printf '\x55\xaa' | dd of=vm.raw bs=1 seek=510 conv=notrunc status=none # what SeaBIOS looks for
qemu-img convert -O qcow2 vm.raw vm.qcow2
mv -T vm.qcow2 "$IMAGES/vm.qcow2"
keep vm.raw "$out" "${made_by[@]}"
