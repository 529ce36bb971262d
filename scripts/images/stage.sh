#!/usr/bin/env bash
# Makes stage.ext4 from root.tar and the VM's disks: a file system with `root/` and `disks/` that
# the rig mounts on a loop device of its own, where it can be slowed down and its reads counted.
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
"$here/root.sh"
"$here/disk.sh"
out=$IMAGES/stage.ext4
made_by=("$0" "$IMAGES/root.tar.recipe" "$IMAGES/vm.raw.recipe")
kept "$out" "${made_by[@]}" && exit

need_root "Unpacking a root"
need mkfs.ext4=e2fsprogs
say "making the stage"
work=$(mktemp -d "$IMAGES/stage.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/disks"
cp -a "$IMAGES/root" "$work/tree/root"
cp --sparse=always "$IMAGES/vm.raw" "$IMAGES/vm.qcow2" "$work/tree/disks"
mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard -d "$work/tree" "$work/stage.ext4" 2G
keep "$work/stage.ext4" "$out" "${made_by[@]}"
