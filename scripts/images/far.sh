#!/usr/bin/env bash
# Makes far/: a Debian 12 root with sh, Python, Node and nginx, which bench-far starts one after the
# other from far away.
source "$(dirname "$0")/../need.sh"
out=$IMAGES/far
kept "$out" "$0" && exit

need_root "Making a Debian root"
need mmdebstrap=mmdebstrap
mkdir -p "$IMAGES"
say "making a Debian root with sh, Python, Node and nginx (a minute, downloads 70 MB)"
aside=$IMAGES/aside.$$
trap 'rm -rf "$aside"' EXIT
mmdebstrap --mode=root --variant=minbase --include=python3,nodejs,nginx-light \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='chroot "$1" python3 -c "import json, ssl, asyncio, sqlite3, http.client"' \
    --customize-hook='chroot "$1" node -e "require(\"http\")"' \
    --customize-hook='chroot "$1" nginx -t' \
    --format=directory bookworm "$aside" ${MIRROR:+"$MIRROR"} >&2 ||
    die "mmdebstrap failed: is the Debian mirror reachable? Set MIRROR to use another."
rm -rf "$out"
keep "$aside" "$out" "$0"
