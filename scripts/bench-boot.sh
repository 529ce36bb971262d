#!/usr/bin/env bash
# Builds, makes the images, and measures: `scripts/bench-boot.sh [boot|micro] [FLAGS...]`.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
need_cargo
need fusermount3=fuse3 losetup=mount mkfs.ext4=e2fsprogs fio=fio \
    qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/stage.sh
case ${1:-} in
boot | micro) what=$1 && shift ;;
*) what=boot ;;
esac
exec "${CARGO_TARGET_DIR:-target}/release/bench-$what" "$@"
