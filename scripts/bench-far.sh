#!/usr/bin/env bash
# Builds, makes the root, and measures starts of programs whose root is far away:
# `scripts/bench-far.sh [FLAGS...]`; `--help` lists them. The whole table takes some 20 minutes;
# `--quick 7` measures one line only.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3
say "building"
cargo build --release -p cli -p benches --bin yolofs --bin bootimg --bin nicfetch --bin bench-far
scripts/images/far.sh
exec "${CARGO_TARGET_DIR:-target}/release/bench-far" "$@"
