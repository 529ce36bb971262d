#!/usr/bin/env bash
# Shows on this machine what yolofs does: builds it, makes a real Debian root with Python and a
# disk that really boots, records a boot of each, and compares how they go. Needs root; takes some
# 6 minutes once the images are there, 3 more to make them. Flags go to the demo program.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The demo"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount fio=fio qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/stage.sh
exec "${CARGO_TARGET_DIR:-target}/release/demo" "$@"
