#!/usr/bin/env bash
# Shows on this machine what yolofs does: builds it, makes a real Debian root with Python, a disk
# that really boots and an image for a Docker of its own, records a boot of each, and compares how
# they go. Needs root; takes some 7 minutes once the images are there, 4 more to make them. Flags go
# to the demo program.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The demo"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount fio=fio qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils
say "building"
cargo build --release -p cli -p benches --bins
scripts/images/stage.sh
# Without Docker the demo says so, and shows the rest.
(need dockerd=docker.io containerd=containerd runc=runc && scripts/images/engines.sh nginx) ||
    say "the image for Docker could not be made"
exec "${CARGO_TARGET_DIR:-target}/release/demo" "$@"
