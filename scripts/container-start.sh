#!/usr/bin/env bash
# Shows where `docker run` and `ctr run` spend their time, in reads and in writes: the figures of
# docs/results/container-start.md. Some 4 minutes once the images are there. Flags go to the program.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The measurement"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs fio=fio dockerd=docker.io containerd=containerd runc=runc strace=strace
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/engines.sh
exec "${CARGO_TARGET_DIR:-target}/release/container-start" "$@"
