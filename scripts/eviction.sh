#!/usr/bin/env bash
# Records starts of containers, of commands on a Debian tree and of a virtual machine, and tells what
# each eviction policy would make of a host that starts them again and again: the last table of
# docs/results/eviction.md. Some 3 minutes once the images are there. Flags go to `nicfetch simulate`.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The recording"
need_cargo
need fusermount3=fuse3 ip=iproute2 unshare=util-linux qemu-system-x86_64=qemu-system-x86
say "building"
cargo build --release -p cli --bins
scripts/images/set.sh redis nginx python
scripts/images/root.sh
scripts/images/disk.sh
bin=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# record NAME SOURCE ARGS...: three runs unless $runs says otherwise, in a network of their own, where every port is free.
record() {
    say "recording $1"
    unshare --net sh -c 'ip link set lo up && exec "$@"' sh \
        "$bin/bootimg" record "$2" --runs "${runs:-3}" --timeout 600 --keep-traces "$work/$1" --store "$work/store" \
        --run-dir "$work/run" "${@:3}" >"$work/log" 2>&1 || die "recording $1 failed: $(tail -n 5 "$work/log")"
}

image() { record "$1" "oci:$IMAGES/oci:$2" --scratch "$work" "${@:3}"; }
image redis redis
image nginx nginx
image python python
image python-script python --until exit -- python3 -c 'import argparse, csv, sqlite3, urllib.request'
record tree-python "$IMAGES/root" -- python3 -c 'import asyncio, ssl, xml.dom.minidom'
record tree-apt "$IMAGES/root" -- apt-cache stats
record tree-perl "$IMAGES/root" -- perl -MPOSIX -MStorable -e 1
# shellcheck disable=SC2016 # the recorder says where the image is
runs=1 record vm "$IMAGES/vm.raw" --until line:YOLO-BOOT-READY -- sh -c 'exec qemu-system-x86_64 -nodefaults \
    -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand -m 256 -machine q35 -display none -no-reboot \
    -drive if=none,id=disk,file=$YOLOFS_IMAGE,format=raw,snapshot=on \
    -device virtio-blk-pci,drive=disk,bootindex=1 -serial stdio -monitor none'
cd "$work"
set -- --starts 2000 "$@"
case "$*" in *--capacity*) ;; *) set -- --capacity 5% --capacity 10% --capacity 25% --capacity 50% --capacity 75% "$@" ;; esac
case $bin in /*) ;; *) bin=$REPO/$bin ;; esac
"$bin/nicfetch" simulate redis python nginx python-script vm tree-python tree-apt tree-perl "$@"
