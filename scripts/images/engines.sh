#!/usr/bin/env bash
# Makes engines.ext4: a file system with the data directory of a Docker engine that has the image
# set, and one empty image, `warm`. The rig mounts a copy of it on a loop device of its own.
# `engines.sh NAME...` makes one with these images only, which is called engines-NAME.ext4.
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
names=("$@")
out=$IMAGES/engines$(printf -- '-%s' "$@").ext4
[ $# -gt 0 ] || { names=(nginx redis python postgres node java) && out=$IMAGES/engines.ext4; }
"$here/set.sh" "${names[@]}"
made_by=("$here/engines.sh")
for name in "${names[@]}"; do made_by+=("$IMAGES/set/$name.json"); done
kept "$out" "${made_by[@]}" && exit

need_root "Filling an engine"
need mkfs.ext4=e2fsprogs dockerd=docker.io skopeo=skopeo busybox=busybox-static
# Mounts of our own, which go with us, whatever happens.
[ -n "${ENGINES_INSIDE:-}" ] || ENGINES_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
say "filling a Docker engine with the images (half a minute)"
work=$(mktemp -d "$IMAGES/engines.XXXXXX")
daemon=
# The containerd that dockerd started may outlive it for a moment, on a busy machine for longer.
detach() {
    local deadline=$((SECONDS + 30))
    until umount mnt 2>/dev/null; do
        [ $SECONDS -lt $deadline ] || { umount mnt; return; }
        sleep 0.1
    done
}
cleanup() {
    [ -z "$daemon" ] || { kill "$daemon" && wait "$daemon" || true; }
    ! mountpoint -q "$work/mnt" || umount --lazy "$work/mnt"
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
mkdir mnt empty
truncate -s 8G engines.ext4
mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard engines.ext4
mount -o loop,noatime engines.ext4 mnt
dockerd --data-root "$work/mnt/docker" --exec-root "$work/exec" --host "unix://$work/socket" \
    --pidfile "$work/pid" --iptables=false --bridge=none --storage-driver=overlay2 >log 2>&1 &
daemon=$!
docker=$(command -v /usr/bin/docker || command -v docker)
for _ in {1..200}; do
    "$docker" --host "unix://$work/socket" version >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || die "dockerd ended: $(tail -n 3 log)"
    sleep 0.3 # it does not say when it is there
done
for name in "${names[@]}"; do
    skopeo copy -q "oci:$IMAGES/oci:$name" "docker-daemon:$name:latest" --dest-daemon-host "unix://$work/socket"
done
cp "$(command -v busybox)" empty/busybox
tar -C empty -c busybox | "$docker" --host "unix://$work/socket" import --change 'CMD ["/busybox","true"]' - warm >/dev/null
kill "$daemon" && wait "$daemon" || true
daemon=
detach
keep engines.ext4 "$out" "${made_by[@]}"
