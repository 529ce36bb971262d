#!/usr/bin/env bash
# Builds, and measures a store with hundreds of boot images: `scripts/bench-store.sh [FLAGS...]`; `--help` lists them.
# PROFILE=dev takes a debug build. Needs some 8 GB of the disk.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
need_cargo
need losetup=mount mkfs.ext4=e2fsprogs
profile=${PROFILE:-release}
say "building"
cargo build --profile "$profile" -p cli -p benches --bin yolofs --bin bootimg --bin bench-store
exec "${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")/bench-store" "$@"
