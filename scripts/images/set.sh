#!/usr/bin/env bash
# Makes the image set: real programs from Debian's packages as layered OCI images like those on
# Docker Hub. `scripts/images/set.sh [NAME...]` makes these, or all six; they are tags of the OCI
# layout .cache/images/oci. To have one in Docker:
#   skopeo copy oci:.cache/images/oci:nginx docker-daemon:nginx:latest [--dest-daemon-host unix://...]
source "$(dirname "$0")/../need.sh"
set_dir=$(cd "$(dirname "$0")/set" && pwd)
all=(nginx redis python postgres node java)
# More, which only scripts/images/tiers.sh asks for, are in directories beside these. With "-full" at
# its end a name is that of the same image on what Docker Hub's default tag has below it.
dir_of() { echo "$set_dir/${1%-full}"; }
names=("$@")
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")
for name in "${names[@]}"; do
    [ -e "$(dir_of "$name")/recipe.sh" ] || die "no image is called $name; there are: ${all[*]}"
done

# What made an image: its own files, and the words they are written in.
made_by() { find "$set_dir"/*.sh "$(dir_of "$1")" -type f | sort; }
missing=()
for name in "${names[@]}"; do
    mapfile -t files < <(made_by "$name")
    kept "$IMAGES/set/$name.json" "${files[@]}" && [ -e "$IMAGES/oci/index.json" ] || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

need_root "Making images"
need mmdebstrap=mmdebstrap jq=jq pigz=pigz getfattr=attr
# Mounts of our own, which go with us, whatever happens.
[ -n "${SET_INSIDE:-}" ] || SET_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
mkdir -p "$IMAGES/set" "$IMAGES/oci/blobs/sha256"
exec 9>"$IMAGES/set/lock"
flock 9 # two at a time would share a package cache

source "$set_dir/layers.sh"
source "$set_dir/words.sh"
for name in "${missing[@]}"; do
    mapfile -t files < <(made_by "$name")
    kept "$IMAGES/set/$name.json" "${files[@]}" && [ -e "$IMAGES/oci/index.json" ] && continue # another run made it
    say "making the image $name"
    FULL=
    [[ $name != *-full ]] || FULL=yes
    FROM_NOTHING "$(dir_of "$name")"
    source "$(dir_of "$name")/recipe.sh"
    write_image "$name" >"$IMAGES/set/aside.$$"
    keep "$IMAGES/set/aside.$$" "$IMAGES/set/$name.json" "${files[@]}"
done
write_index
