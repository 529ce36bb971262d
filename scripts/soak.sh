#!/usr/bin/env bash
# Does harm to real mounts while others read from them, and proves that nothing was lost.
# scripts/soak.sh --minutes 2, --hours 1, --only worker-killed --runs 200, --list: docs/faults.md.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The soak"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
export YOLOFS_IMAGES=$IMAGES
case "$*" in *container*) need runc=runc busybox=busybox-static ;; esac
case "$*" in *vm* | *clock-jumps* | *power-cuts* | *nvm-lost*)
    need qemu-system-x86_64=qemu-system-x86 debugfs=e2fsprogs busybox=busybox-static strip=binutils
    scripts/images/disk.sh
    ;;
esac
case "$*" in *nvm-lost*) scripts/images/kernel.sh ;; esac
# What is measured is what is shipped.
cargo build --quiet --release -p cli -p e2e --bins
exec "${CARGO_TARGET_DIR:-target}/release/soak" "$@"
