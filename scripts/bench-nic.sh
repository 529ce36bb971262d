#!/usr/bin/env bash
# Builds, makes the images, and measures nicfetch beside a registry, a pull-through proxy and
# tarballs: `scripts/bench-nic.sh [FLAGS...]`; `--help` lists them. All of it takes some 20 minutes,
# because pulls go over a slow line; `--only` and `--samples` measure less.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 dockerd=docker.io containerd=containerd runc=runc docker-registry=docker-registry \
    skopeo=skopeo umoci=umoci openssl=openssl ip=iproute2 tc=iproute2 nsenter=util-linux
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/root.sh
scripts/images/set.sh python
exec "${CARGO_TARGET_DIR:-target}/release/bench-nic" "$@"
