#!/usr/bin/env bash
# Makes tiers.ext4: a file system with the roots of the image set and of more images, in the
# categories of N-Docker's evaluation, for scripts/bench-tier.sh. Languages and frameworks are the
# default tags of Docker Hub, and have below them what builds packages. `tiers.sh NAME...` makes one with
# these images only, which is called tiers-NAME.ext4.
#
#   roots/NAME          the image's layers, stacked
#   roots/NAME/.start   runs what the image runs, until its health check succeeds or it ends
#   images/NAME.json    {category}
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
declare -A category=(
    [debian]=distribution
    [redis]=database [postgres]=database [memcached]=database [mariadb]=database [sqlite]=database
    [perl-full]=language [ruby-full]=language [php-full]=language [gcc-full]=language
    [java-full]=language [lua]=language
    [nginx]=web-server [apache]=web-server [lighttpd]=web-server [haproxy]=web-server
    [python-full]=web-framework [node-full]=web-framework [django-full]=web-framework
    [sinatra-full]=web-framework
    [git]=application [imagemagick]=application [mercurial]=application
)
names=("$@")
out=$IMAGES/tiers$(printf -- '-%s' "$@").ext4
[ $# -gt 0 ] || { mapfile -t names < <(printf '%s\n' "${!category[@]}" | sort) && out=$IMAGES/tiers.ext4; }
for name in "${names[@]}"; do
    [ -n "${category[$name]:-}" ] || die "no image is called $name; there are: ${!category[*]}"
done
"$here/set.sh" "${names[@]}"
made_by=("$here/tiers.sh")
for name in "${names[@]}"; do made_by+=("$IMAGES/set/$name.json"); done
kept "$out" "${made_by[@]}" && exit

need_root "Unpacking images"
need mkfs.ext4=e2fsprogs jq=jq umoci=umoci
# Mounts of our own, which go with us, whatever happens.
[ -n "${TIERS_INSIDE:-}" ] || TIERS_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
say "unpacking ${#names[@]} images (some 15 s each)"
work=$(mktemp -d "$IMAGES/tiers.XXXXXX")
cleanup() {
    ! mountpoint -q "$work/mnt" || umount "$work/mnt"
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$work/mnt"
truncate -s 16G "$work/tiers.ext4"
mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$work/tiers.ext4"
mount -o loop,noatime "$work/tiers.ext4" "$work/mnt"
mkdir "$work/mnt"/{roots,images}

# start CONFIG: prints the script that starts what an image's configuration says.
start() {
    echo '#!/bin/sh'
    jq -r '.config | (.Env // [] | .[] | "export \(@sh)"), "cd \(.WorkingDir // "/" | @sh)"' "$1"
    jq -r '.config | ((.Entrypoint // []) + (.Cmd // [])) as $command
        | if .Healthcheck then
              "\($command | @sh) >/dev/null 2>&1 </dev/null &\nprogram=$!",
              "until sh -c \(.Healthcheck.Test[1] | @sh) >/dev/null 2>&1; do kill -0 $program || exit 1; done",
              "kill -9 $program"
          else "exec \($command | @sh) </dev/null >/dev/null" end' "$1"
}

for name in "${names[@]}"; do
    digest=$(jq -r .digest "$IMAGES/set/$name.json")
    manifest=$IMAGES/oci/blobs/sha256/${digest#sha256:}
    config=$(jq -r .config.digest "$manifest")
    umoci raw unpack --image "$IMAGES/oci:$name" "$work/mnt/roots/$name" >"$work/log" 2>&1 ||
        die "cannot unpack $name: $(tail -n 3 "$work/log")"
    start "$IMAGES/oci/blobs/sha256/${config#sha256:}" >"$work/mnt/roots/$name/.start"
    chmod 755 "$work/mnt/roots/$name/.start"
    jq -n --arg category "${category[$name]}" '$ARGS.named' >"$work/mnt/images/$name.json"
done
umount "$work/mnt"
keep "$work/tiers.ext4" "$out" "${made_by[@]}"
