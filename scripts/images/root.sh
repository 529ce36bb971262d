#!/usr/bin/env bash
# Makes root.tar and root/: a Debian 12 root with Python, as apt installs it.
source "$(dirname "$0")/../need.sh"
out=$IMAGES/root.tar
kept "$out" "$0" && [ -d "$IMAGES/root" ] && exit

need_root "Making a Debian root"
need mmdebstrap=mmdebstrap
mkdir -p "$IMAGES"
say "making a Debian root with Python (about half a minute, downloads 40 MB)"
# mmdebstrap takes the format from the suffix.
aside=$IMAGES/aside.$$
trap 'rm -rf "$aside" "$aside.tar"' EXIT
mmdebstrap --mode=root --variant=minbase --include=python3 \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='chroot "$1" python3 -c "import json, ssl, http.client"' \
    bookworm "$aside.tar" ${MIRROR:+"$MIRROR"} >&2 ||
    die "mmdebstrap failed: is the Debian mirror reachable? Set MIRROR to use another."
mkdir "$aside"
tar -C "$aside" --numeric-owner --xattrs --xattrs-include='*' -xpf "$aside.tar"
rm -rf "$IMAGES/root"
mv -T "$aside" "$IMAGES/root"
keep "$aside.tar" "$out" "$0"
