#!/usr/bin/env bash
# Installs the packages in a root of their own, looks at what is there, upgrades, removes, and finds nothing left.
# The programs are those of a directory, so that no release need be built: check-packages.sh [DIR [SUITE]].
# Its mounts are its own.
[ -n "${INSIDE:-}" ] || INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
source "$(dirname "$0")/../scripts/need.sh"
need_root "Installing packages in a root of their own"
need mmdebstrap=mmdebstrap rpmbuild=rpm dpkg-deb=dpkg strip=binutils
programs=$(realpath "${1:-$REPO/target/debug}")
suite=${2:-bookworm}
work=$(mktemp -d)
root=$work/root
trap 'umount -q "$root/proc"; rm -rf --one-file-system "$work"' EXIT
cd "$REPO"
for release in 1 2; do cargo xtask dist --programs "$programs" --out "$work/$release" --release "$release" --kinds deb; done
cargo xtask dist --programs "$programs" --out "$work/1" --kinds rpm
say "making a root of $suite"
mmdebstrap --quiet --variant=minbase --include=systemd,man-db "$suite" "$root"
mount -t proc proc "$root/proc"
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive "$@"; }
# All that is there, but what dpkg and its like note down; users stay, as Debian has it.
files() { (cd "$root" && find . -xdev ! -path './var/lib/dpkg*' ! -path './var/cache*' ! -path './var/log*' ! -path './proc*' ! -path './etc/*-' ! -path './run/systemd*' | sort); }
files >"$work/before"

cp "$work/1/"*.deb "$work/2/"*.deb "$root/tmp"
inside sh -c 'dpkg --install /tmp/yolofs_*-1_*.deb' || die "it cannot be installed"
for program in yolofs bootimg nicfetch sandbox; do
    inside "$program" --version >/dev/null || die "$program does not run"
    [ -e "$root/usr/share/man/man1/$program.1.gz" ] || die "$program has no manual page"
    [ -e "$root/usr/share/bash-completion/completions/$program" ] || die "$program has no completions"
done
[ -x "$root/usr/bin/sandbox-oci" ] || die "sandbox-oci is missing"
grep -q '^yolofs:' "$root/etc/passwd" && grep -q '^nicfetch:' "$root/etc/passwd" || die "the users are missing"
[ "$(stat -c %a "$root/var/lib/yolofs")" = 700 ] || die "/var/lib/yolofs is not for root only"
said=$(inside sh -c 'mkdir -p /etc/yolofs && cd /usr/lib/systemd/system && systemd-analyze verify --man=yes --recursive-errors=no \
    $(dpkg --listfiles yolofs | grep "^/usr/lib/systemd/system/.*[a-z].service$" | grep -v @)' 2>&1 | grep -v FileDescriptorStorePreserve) || true
[ -z "$said" ] || die "systemd does not like the installed units: $said"
say "installed"

# An upgrade keeps what the administrator changed.
echo '# mine' >>"$root/etc/yolofs/snapshotter.env"
inside sh -c 'dpkg --install --force-confold /tmp/yolofs_*-2_*.deb' || die "it cannot be upgraded"
grep -q '^# mine' "$root/etc/yolofs/snapshotter.env" || die "the upgrade lost a setting"
# What was set up is taken back when the package goes: the engine would pull nothing.
mkdir -p "$root/etc/docker"
printf '{"version":1,"changes":[{"path":"/etc/docker/daemon.json","before":null,"after":"{}","why":""}]}' >"$root/etc/yolofs/setup.json"
printf '{}' >"$root/etc/docker/daemon.json"
inside dpkg --purge yolofs || die "it cannot be removed"
rm -f "$root"/tmp/*.deb
files >"$work/after"
left=$(diff "$work/before" "$work/after") || die "it leaves: $left"
say "removed: nothing is left"

rpm --root "$work/rpm" --initdb
rpm --root "$work/rpm" --install --nodeps --noscripts --ignorearch "$work/1/"*.rpm || die "the .rpm cannot be installed"
rpm --root "$work/rpm" --verify --nodeps --noscripts yolofs || die "the .rpm's files are not as it says"
rpm -qp --scripts "$work/1/"*.rpm | sed '/^[a-z]* scriptlet/d' | sh -n || die "a scriptlet of the .rpm is no shell"
number=$(rpm --root "$work/rpm" -ql yolofs | grep -c .)
[ "$number" -gt 60 ] || die "the .rpm has $number files only"
say "the .rpm installs"
