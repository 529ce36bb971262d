#!/usr/bin/env bash
# Lets systemd check the units, against programs that exist only for the check.
source "$(dirname "$0")/../scripts/need.sh"
need systemd-analyze=systemd
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/usr/bin"
install -m 755 /bin/true "$work/usr/bin/bootimg"
install -m 755 /bin/true "$work/usr/bin/yolofs"
for unit in "$REPO"/packaging/*.service; do
    sed -E "s,/usr/bin/(bootimg|yolofs),$work&," "$unit" >"$work/$(basename "$unit")"
done
cp "$work/yolofs@.service" "$work/yolofs@web.service"
said=$(cd "$work" && systemd-analyze verify --man=no --recursive-errors=no ./yolofs-prewarm.service ./yolofs@web.service 2>&1) ||
    die "systemd does not like the units: $said"
# It warns without failing about what it does not know.
[ -z "$said" ] || die "systemd warns about the units: $said"
say "systemd accepts the units"
