#!/usr/bin/env bash
# Builds, makes the image set, and times containers under an engine of the bench's own:
# `scripts/bench-containers.sh [FLAGS...]`; `--help` lists them. All of it takes some 22 minutes,
# because a cold start on a busy disk is slow; `--only`, `--image` and `--samples` measure less, and
# `--depth 2` has a lighter neighbour.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs fio=fio dockerd=docker.io containerd=containerd runc=runc
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/engines.sh
exec "${CARGO_TARGET_DIR:-target}/release/bench-containers" "$@"
