#!/usr/bin/env bash
# Shows on this machine what yolofs does: builds it, makes a real Debian root with Python, a disk
# that really boots and an image for a Docker of its own, records a boot of each, and compares how
# they go. Needs root. On a fresh machine of two cores the first figures are there within minutes;
# the image for Docker is made after these. Flags go to the demo program.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The demo"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
need fusermount3=fuse3 losetup=mount fio=fio qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils \
    mmdebstrap=mmdebstrap mkfs.ext4=e2fsprogs
start=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "building, and making the images meanwhile"
scripts/images/stage.sh >"$log" 2>&1 &
images=$!
# What is shown takes two of the programs; the profile is the quick one.
built=0
cargo build --profile demo --no-default-features -p cli -p benches --bin yolofs --bin bootimg --bin demo || built=$?
wait "$images" || die "the images could not be made: $(cat "$log")"
[ "$built" = 0 ] || die "it could not be built"
demo=${CARGO_TARGET_DIR:-target}/demo/demo
say "built after $((SECONDS - start)) s"
"$demo" --part boots "$@"
# Without Docker the demo says so.
(need dockerd=docker.io containerd=containerd runc=runc && scripts/images/engines.sh nginx) ||
    say "the image for Docker could not be made"
"$demo" --part docker "$@"
