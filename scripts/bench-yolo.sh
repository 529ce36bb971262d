#!/usr/bin/env bash
# Builds, makes the light guest, and repeats the YOLO paper's evaluation in small: `scripts/bench-yolo.sh [FLAGS...]`;
# `--help` lists them. PROFILE=dev takes a debug build. A round of all cells of one disk takes some 11 minutes on two quiet
# cores, so for the document:
#   scripts/bench-yolo.sh --rounds 1 --disks hdd --json hdd.json
#   scripts/bench-yolo.sh --rounds 1 --disks ssd --with hdd.json --json yolo.json --figures docs/results
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs fio=fio qemu-system-x86_64=qemu-system-x86
profile=${PROFILE:-release}
say "building"
cargo build --profile "$profile" -p cli -p benches --bin yolofs --bin bootimg --bin bench-yolo
scripts/images/light.sh
exec "${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")/bench-yolo" "$@"
