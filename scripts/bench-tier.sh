#!/usr/bin/env bash
# Builds, makes 23 images, and times their pulls to a slow disk, to NVM and to where LASS puts layers, and
# their cold starts from a slow disk, from NVM, and with only what a start needs on NVM:
# `scripts/bench-tier.sh [FLAGS...]`; `--help` lists them. The images take some 15 minutes once, and 15 GB;
# of three rounds, the starts some 30 minutes and the pulls 90. `--only`, `--image` and `--rounds` measure less.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs ip=iproute2 unshare=util-linux
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/tiers.sh
# A network of its own: the images' servers listen where others may.
exec unshare --net sh -c 'ip link set lo up && exec "$0" "$@"' "${CARGO_TARGET_DIR:-target}/release/bench-tier" "$@"
