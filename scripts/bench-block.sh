#!/usr/bin/env bash
# Builds, makes what is missing of the images, and measures block images:
# `scripts/bench-block.sh [FLAGS...]`; `--help` lists them. All of it takes some 15 minutes.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 fio=fio docker-registry=docker-registry mkfs.erofs=erofs-utils mke2fs=e2fsprogs
say "building"
cargo build --release -p cli -p benches --bin yolofs --bin bootimg --bin bench-block
scripts/images/far.sh
scripts/images/set.sh python
exec "${CARGO_TARGET_DIR:-target}/release/bench-block" "$@"
