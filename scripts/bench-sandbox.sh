#!/usr/bin/env bash
# Builds, and measures sandboxes beside runc, crun, `docker run` and a plain process: `scripts/bench-sandbox.sh
# [FLAGS...]`; `--help` lists them. All of it takes some twelve minutes on a quiet machine.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs fio=fio
say "building"
cargo build --release -p cli -p benches --bin yolofs --bin bootimg --bin bench-sandbox
scripts/images/stage.sh
exec "${CARGO_TARGET_DIR:-target}/release/bench-sandbox" "$@"
