# Sourced by set.sh: layers. One is what a command changed, found with an overlay. It is kept under
# a key made of everything before it, as `docker build` does: images that begin alike share layers.
# shellcheck shell=bash
LAYERS=$IMAGES/layers
PACKAGES=$IMAGES/packages # what apt fetched, for all images
BLOBS=$IMAGES/oci/blobs/sha256

# layer CREATED_BY COMMAND...: adds the layer that COMMAND makes, given the root to change.
layer() {
    local created_by=$1 dir
    KEY=$(printf '%s\0' "$KEY" "$@" | sha256sum | cut -c 1-32)
    dir=$LAYERS/$KEY
    # Its blob may be gone: the layout can be deleted without the layers.
    [ -e "$dir/layer.json" ] && [ -e "$BLOBS/$(jq -r .blob "$dir/layer.json")" ] ||
        make_layer "$dir" "$@"
    LOWER=("$dir/root" "${LOWER[@]}")
    MADE+=("$dir/layer.json")
    note "$created_by" "$(jq -r .created "$dir/layer.json")" layer
}

make_layer() {
    local dir=$1 created_by=$2 aside=$LAYERS/aside.$$ lower
    shift 2
    rm -rf "$aside" "$dir"
    mkdir -p "$aside"/{root,work,merged,whiteouts}
    if [ ${#LOWER[@]} = 0 ]; then
        "$@" "$aside/root"
    else
        lower=$(IFS=:; echo "${LOWER[*]}")
        # Nothing that only an overlay would understand.
        mount -t overlay -o "redirect_dir=off,metacopy=off,index=off,lowerdir=$lower,upperdir=$aside/root,workdir=$aside/work" \
            none "$aside/merged" || die "cannot mount an overlay under $LAYERS"
        "$@" "$aside/merged" || die "this failed: $created_by"
        umount "$aside/merged"
    fi
    pack "$aside" "$created_by"
    rm -rf "$aside"/{work,merged,whiteouts,changed,gone}
    mv -T "$aside" "$dir"
}

# pack DIR CREATED_BY: writes what DIR/root changed as a blob, and DIR/layer.json, which names it.
pack() {
    local dir=$1 created_by=$2 diff_id blob name lower
    (cd "$dir/root" && find . -mindepth 1 ! -type c -printf '%P\0' | sort -z) >"$dir/changed"
    # What an overlay hides is in a layer an empty file .wh.NAME, or .wh..wh..opq for all of a directory.
    while IFS= read -r -d '' name; do
        mkdir -p "$dir/whiteouts/$(dirname "$name")"
        touch "$dir/whiteouts/$(dirname "$name")/.wh.$(basename "$name")"
    done < <(cd "$dir/root" && find . -type c -printf '%P\0')
    # The kernel marks each new directory so; it means something only where there is one below.
    while IFS= read -r name; do
        for lower in "${LOWER[@]}"; do
            [ -d "$lower/$name" ] || continue
            mkdir -p "$dir/whiteouts/$name"
            touch "$dir/whiteouts/$name/.wh..wh..opq"
            break
        done
    done < <(cd "$dir/root" && getfattr -R -h -n trusted.overlay.opaque . 2>/dev/null |
        awk '/^# file: /{name = substr($0, 9)} /^trusted.overlay.opaque="y"/{print name}')
    (cd "$dir/whiteouts" && find . -type f -printf '%P\0' | sort -z) >"$dir/gone"
    tar --numeric-owner --no-recursion --format=posix --pax-option=delete=atime,delete=ctime \
        --xattrs --xattrs-include='security.capability' --xattrs-include='user.*' --null \
        -cf - -C "$dir/root" -T "$dir/changed" -C "$dir/whiteouts" -T "$dir/gone" |
        tee >(sha256sum | cut -d ' ' -f 1 >"$dir/diff_id") | pigz -n >"$dir/blob"
    blob=$(sha256sum "$dir/blob" | cut -d ' ' -f 1)
    until diff_id=$(grep . "$dir/diff_id"); do sleep 0.05; done # tee's sha256sum may still be at its end
    jq -n --arg diff_id "$diff_id" --arg blob "$blob" --argjson size "$(stat -c %s "$dir/blob")" \
        --arg created "$(date -u +%FT%TZ)" '$ARGS.named' >"$dir/layer.json"
    mv -T "$dir/blob" "$BLOBS/$blob"
    rm "$dir/diff_id"
    say "  $((($(stat -c %s "$BLOBS/$blob") + 524288) >> 20)) MiB: ${created_by%%$'\n'*}"
}

# debian ROOT: puts a small Debian there, as Docker Hub's debian:bookworm-slim is.
debian() {
    mkdir -p "$PACKAGES"
    mmdebstrap --mode=root --variant=minbase --format=directory \
        --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        bookworm "$1" ${MIRROR:+"$MIRROR"} >&2 ||
        die "mmdebstrap failed: is the Debian mirror reachable? Set MIRROR to use another."
    find "$1/dev" -mindepth 1 -delete # the engine brings its own
    : >"$1/etc/resolv.conf"
    # An image starts its one program by itself.
    printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
    chmod 755 "$1/usr/sbin/policy-rc.d"
}

# run SCRIPT ROOT: runs a script in the root, with the network and with the packages that are kept.
run() {
    local script=$1 root=$2 there
    mkdir -p "$PACKAGES"/{debs/partial,lists/partial}
    mount -t proc proc "$root/proc"
    for there in /dev="$root/dev" /etc/resolv.conf="$root/etc/resolv.conf" \
        "$PACKAGES/debs=$root/var/cache/apt/archives" "$PACKAGES/lists=$root/var/lib/apt/lists"; do
        mount --bind "${there%%=*}" "${there#*=}"
    done
    if [[ $script == *apt-get* && -z ${LISTS_ARE_FRESH:-} ]]; then
        chroot "$root" apt-get update -q >/dev/null || die "apt-get update failed: is the network there?"
        LISTS_ARE_FRESH=1
    fi
    # Caches of apt's own are not part of an image.
    DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$root" /bin/sh -ec "$script
rm -f /var/cache/apt/*.bin /var/cache/debconf/*-old /var/log/apt/* /var/log/dpkg.log /var/log/alternatives.log" >"$IMAGES/set/log" 2>&1 ||
        { tail -n 20 "$IMAGES/set/log" >&2; die "this failed: $script"; }
    umount "$root"/{var/lib/apt/lists,var/cache/apt/archives,etc/resolv.conf,dev,proc}
}

# copy FILE TARGET MODE CONTENT ROOT: puts a file there; the digest of its content is for the key.
copy() { install -D -m "$3" "$1" "$5$2"; }
