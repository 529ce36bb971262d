#!/usr/bin/env bash
# Boots a Debian guest with systemd, installs the .deb there, starts the units, upgrades under mounts that read, and removes
# and purges it: nothing is left, and no read failed. The programs are those of a directory: check-guest.sh [DIR].
# Some minutes in an emulated machine; needs scripts/images/disk.sh for the kernel.
source "$(dirname "$0")/../scripts/need.sh"
need_root "Making a disk for a guest"
need mmdebstrap=mmdebstrap dpkg-deb=dpkg strip=binutils mkfs.ext4=e2fsprogs debugfs=e2fsprogs qemu-system-x86_64=qemu-system-x86 \
    busybox=busybox-static gzip=gzip
programs=$(realpath "${1:-$REPO/target/debug}")
[ -e "$IMAGES/vm.raw" ] || die "$IMAGES/vm.raw is missing: run scripts/images/disk.sh"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$REPO"
for release in 1 2; do cargo xtask dist --programs "$programs" --out "$work/$release" --release "$release" --kinds deb; done

say "making a Debian that boots systemd"
root=$work/root
mmdebstrap --quiet --mode=root --variant=minbase --include=systemd-sysv,dbus,udev,kmod,fuse3,busybox-static \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$root" ${MIRROR:+"$MIRROR"}
# The kernel, its modules and an init that mounts the disk are those of the other guests.
for file in vmlinuz initrd.img; do debugfs -R "dump /boot/$file $work/$file" "$IMAGES/vm.raw" 2>/dev/null; done
debugfs -R "rdump /lib/modules $root/usr/lib" "$IMAGES/vm.raw" 2>/dev/null
chroot "$root" depmod "$(ls "$root/usr/lib/modules")"
cp "$work"/1/*.deb "$work"/2/*.deb "$root/root"
printf '/dev/vda / ext4 defaults,noatime 0 1\n' >"$root/etc/fstab"
printf 'fuse\noverlay\n' >"$root/etc/modules-load.d/yolofs.conf"
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
cat >"$root/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /root/check
StandardOutput=file:/dev/ttyS0
StandardError=inherit
ExecStopPost=/bin/systemctl --force --force poweroff
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -s ../check.service "$root/etc/systemd/system/default.target.wants/check.service"
cat >"$root/root/check" <<'CHECK'
set -uo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
trap 'echo "GUEST at line $LINENO"' ERR
say() { echo "GUEST $*"; }
die() {
    say "FAILED $*"
    systemctl --failed --no-legend --no-pager
    journalctl --no-pager -o cat -u yolofs-node -u 'yolofs@*' -u sandboxd | tail -40
    exit 1
}
within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    until "${@:2}" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "not within $1 s: ${*:2}"; sleep 0.1; done
}
files() { (cd / && find . -xdev ! -path './var/lib/dpkg*' ! -path './var/cache*' ! -path './var/log*' ! -path './tmp*' ! -path './etc/*-' ! -path './root*' ! -path './var/lib/systemd*' | sort); }
say "systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p'), kernel $(uname -r)"
files >/root/before

dpkg --install /root/yolofs_*-1_*.deb || die "it cannot be installed"
for unit in yolofs-node.socket yolofs-node sandboxd yolofs-prewarm; do
    systemctl start $unit || die "$unit does not start"
    say "started $unit: $(systemctl is-active $unit)"
done
[ "$(systemctl is-active yolofs-node)" = active ] || die "the node is not active"

# A root with a shell and 8 MiB of files, recorded and mounted by the node, with an overlay and a container on it; and
# another mount by its own unit.
mkdir -p /srv/source/{bin,data,proc,out}
cp /bin/busybox /srv/source/bin
for name in sh cat md5sum sleep dd mount umount; do ln -s busybox /srv/source/bin/$name; done
for file in 0 1 2 3 4 5 6 7; do head -c 1048576 /dev/urandom >/srv/source/data/$file; done
(cd /srv/source && md5sum data/* >sums)
bootimg record /srv/source --name web -- /bin/sh -c 'cat /data/0 /data/1 >/dev/null' || die "no boot was recorded"
mkdir -p /mnt/web /mnt/unit /srv/upper /srv/work /srv/merged
yolofs mount /srv/source /mnt/web --boot web --wait-prewarm || die "the node does not mount"
printf 'SOURCE=/srv/source\nMOUNTPOINT=/mnt/unit\nOPTIONS=--boot web\n' >/etc/yolofs/unit.env
systemctl start yolofs@unit || die "yolofs@unit does not start"
mount -t overlay overlay -o xino=on,lowerdir=/mnt/web,upperdir=/srv/upper,workdir=/srv/work /srv/merged || die "no overlay"
yolofs status
# reader NAME DIR: reads all files past the page cache, compares them, and counts rounds, until /root/stop is there.
cat >/root/reader <<'READER'
cd "$2" && while [ ! -e /root/stop ]; do
    for file in data/*; do dd if=$file of=/dev/null iflag=nocache count=0 2>/dev/null; done
    md5sum --quiet -c sums >>/root/$1.failed 2>&1 || echo "a round failed" >>/root/$1.failed
    echo >>/root/$1.rounds
done
READER
unshare --mount --pid --fork --mount-proc bash /root/reader container /srv/merged &
bash /root/reader unit /mnt/unit &
rounds() { wc -l <"/root/$1.rounds"; }
for name in container unit; do within 60 test -s /root/$name.rounds; done
say "reading"

processes() { # those of yolofs, whatever became of the file that they were started from
    local exe
    for exe in /proc/[0-9]*/exe; do
        case $(readlink "$exe") in /usr/bin/yolofs*) basename "${exe%/exe}" ;; esac
    done
}
workers() { for pid in $(processes); do tr "\0" " " </proc/$pid/cmdline | grep -q " worker " && echo $pid; done | sort | tr "\n" " "; }
before=$(workers) node=$(systemctl show -P MainPID yolofs-node)
dpkg --install /root/yolofs_*-2_*.deb || die "it cannot be upgraded"
[ "$(systemctl show -P MainPID yolofs-node)" != "$node" ] || die "the node was not restarted"
[ "$(workers)" != "$before" ] || die "the workers were not replaced: $before"
for name in container unit; do
    seen=$(rounds $name)
    within 60 bash -c "[ \$(wc -l </root/$name.rounds) -gt $((seen + 2)) ]"
    [ ! -s /root/$name.failed ] || die "$name: $(head -3 /root/$name.failed)"
    say "$name: $(rounds $name) rounds, none failed"
done
say "upgraded under readers"

touch /root/stop
wait
umount /srv/merged || die "the overlay is in use"
systemctl stop yolofs@unit || die "yolofs@unit does not stop"
rm -f /etc/yolofs/unit.env
dpkg --remove yolofs || die "it cannot be removed"
! grep yolofs /proc/self/mounts || die "mounts are left"
[ -z "$(processes)" ] || die "processes are left: $(processes)"
[ -z "$(systemctl list-units --all --no-legend --plain 'yolofs*' 'sandboxd*' 'nicfetch*' | grep -v not-found)" ] ||
    die "units are left: $(systemctl list-units --all --no-legend --plain 'yolofs*' 'sandboxd*')"
dpkg --purge yolofs || die "it cannot be purged"
rm -rf /srv/source /srv/upper /srv/work /srv/merged /mnt/web /mnt/unit
files >/root/after
left=$(diff /root/before /root/after) || die "it leaves: $left"
for name in container unit; do [ ! -s /root/$name.failed ] || die "$name: $(head -3 /root/$name.failed)"; done
say "PASSED nothing is left, and no read failed"
CHECK
truncate -s 3G "$work/disk.raw"
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0,nodiscard -d "$root" "$work/disk.raw"
rm -rf --one-file-system "$root"

say "booting it"
timeout "${TIMEOUT:-900}" qemu-system-x86_64 -nodefaults -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand -m 1024 -smp 2 \
    -machine q35 -display none -no-reboot -serial stdio -kernel "$work/vmlinuz" -initrd "$work/initrd.img" \
    -append 'init=/lib/systemd/systemd console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off systemd.show_status=false' \
    -object rng-random,id=rng0,filename=/dev/urandom -device virtio-rng-pci,rng=rng0 \
    -drive "file=$work/disk.raw,format=raw,if=virtio,cache=unsafe" </dev/null | tee "$work/console"
grep -q '^GUEST PASSED' "$work/console" || die "the guest did not pass (above)"
