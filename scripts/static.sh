#!/usr/bin/env bash
# Makes the archive of static programs, and tries it in a root that has nothing else but busybox: a boot is recorded, the
# tree is mounted from it, read, and unmounted. Those for AArch64 are run by an emulator of processes, which has no
# openat2(2) in Debian 12 (QEMU 7.2; it came with 9): they say their version and their help.
#
#   scripts/static.sh [PROFILE [PROCESSOR [PROGRAMS]]]
#       release and x86_64 unless said otherwise; PROGRAMS is a directory of programs that are built already
# shellcheck source=scripts/need.sh
. "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "Mounting in another root"
need_cargo
profile=${1:-release} processor=${2:-x86_64} programs=${3:-}
case $processor in
x86_64) need musl-gcc=musl-tools readelf=binutils ;;
aarch64)
    need aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu qemu-aarch64-static=qemu-user-static
    [ -e /usr/aarch64-linux-gnu/include/stdint.h ] || die "install the headers for it: libc6-dev-arm64-cross"
    ;;
*) die "unknown processor $processor: x86_64 or aarch64" ;;
esac
need busybox=busybox-static
! readelf -l "$(command -v busybox)" | grep -q INTERP || die "busybox is not static: install busybox-static"
target=$processor-unknown-linux-musl
rustup target list --installed | grep -qx "$target" || rustup target add "$target" ||
    die "rustup could not install the target $target"

work=$(mktemp -d)
root=$work/root
tidy() {
    umount -q "$root/mnt" "$root/proc" "$root/dev/fuse" "$root/dev/null" "$root" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap tidy EXIT
cargo xtask dist --static "$processor" --profile "$profile" --out "$work/out" ${programs:+--programs "$programs"}
mkdir -p "$root"
# A root is a mount, here too: what is recorded gets mounts of its own.
mount --bind "$root" "$root"
mount --make-private "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,src/bin,src/etc,src/proc,src/dev,src/tmp,mnt,var/lib}
tar --zstd -xf "$work"/out/*.tar.zst -C "$root/bin" --strip-components 1
[ -z "$(find "$root" -xdev -name '*.so*')" ] || die "the root has libraries"
chroot=$(command -v chroot)
# inside COMMAND...: runs it in that root, with nothing of the environment.
inside() { env -i PATH=/bin HOME=/ "$chroot" "$root" "$@"; }

if [ "$processor" = aarch64 ]; then
    cp "$(command -v qemu-aarch64-static)" "$root/bin/qemu"
    for program in bootimg yolofs nicfetch sandbox; do
        said=$(inside qemu "/bin/$program" --version)
        [[ $said == "$program "[0-9]* ]] || die "$program does not say its version: $said"
        inside qemu "/bin/$program" --help >/dev/null
    done
    say "the programs for AArch64 are static, and run in a root without libraries"
    exit
fi
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$(command -v busybox)" "$root/src/bin/busybox"
for device in fuse null; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t proc proc "$root/proc"
head -c 3000000 /dev/urandom >"$root/src/noise"
echo hello >"$root/src/etc/hello"

inside bootimg record --name tree /src -- /bin/busybox md5sum /noise 2>"$work/said" || die "nothing was recorded: $(cat "$work/said")"
inside bootimg inspect tree | grep -q 'noise$' || die "the boot image lacks what was read"
inside yolofs mount /src /mnt --boot tree --wait-prewarm
inside busybox cat /mnt/noise | cmp - "$root/src/noise"
[ "$(inside busybox cat /mnt/etc/hello)" = hello ] || die "the mount has other contents"
inside yolofs status --json >"$work/status"
grep -q '"image": "tree"' "$work/status" || die "the mount has no boot image: $(cat "$work/status")"
inside yolofs umount /mnt
inside nicfetch --version
inside sandbox --version
say "$(inside yolofs --version) is static, $(stat -c %s "$root/bin/yolofs") bytes, and mounts in a root without libraries"
