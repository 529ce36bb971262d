#!/usr/bin/env bash
# Builds, makes the light guest, and restores a saved machine whose memory is mapped from a file:
# `scripts/bench-snapshots.sh [FLAGS...]`; `--help` lists them. PROFILE=dev takes a debug build. It needs QEMU 8.2 or later
# (`--qemu PATH`), which Debian 12 has in its backports.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs qemu-system-x86_64=qemu-system-x86
profile=${PROFILE:-release}
say "building"
cargo build --profile "$profile" -p cli -p benches --bin yolofs --bin bootimg --bin bench-snapshots
scripts/images/light.sh
exec "${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")/bench-snapshots" "$@"
