# Sourced by set.sh: the words of a recipe, which are a Dockerfile's, and the image they make.
# shellcheck shell=bash

# FROM_NOTHING DIR: begins an image whose files are in DIR.
FROM_NOTHING() {
    CONTEXT=$1 KEY=$(sha256sum <"$set_dir/layers.sh") LOWER=() MADE=() HISTORY='[]'
    CONFIG='{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}'
}

# note CREATED_BY CREATED layer|empty: adds to the history. Entries of layers are in their order.
note() {
    HISTORY=$(jq -c --arg created_by "$1" --arg created "$2" --arg kind "$3" \
        '. + [{created: $created, created_by: $created_by} + if $kind == "empty" then {empty_layer: true} else {} end]' <<<"$HISTORY")
}

# set_config CREATED_BY FILTER [JQ_ARGS...]: changes the configuration only.
set_config() {
    note "$1" "$(date -u +%FT%TZ)" empty
    CONFIG=$(jq -c "${@:3}" "$2" <<<"$CONFIG")
}

# FROM_DEBIAN [WITH...]: Debian; below Docker Hub's default tags of languages and frameworks lies more,
# so that programs and modules can be built there: what the layers of its buildpack-deps have.
FROM_DEBIAN() {
    layer "# debian.sh --arch 'amd64' out/ 'bookworm'" debian
    set_config '#(nop) CMD ["bash"]' '.Cmd = ["bash"]'
    local with
    for with; do
        case $with in
            curl) RUN 'apt-get install -y ca-certificates curl gnupg netbase sq wget tzdata' ;;
            scm) RUN 'apt-get install -y git mercurial openssh-client subversion procps' ;;
            dev) RUN 'apt-get install -y autoconf automake bzip2 default-libmysqlclient-dev dpkg-dev file g++ gcc imagemagick libbz2-dev libc6-dev libcurl4-openssl-dev libdb-dev libevent-dev libffi-dev libgdbm-dev libglib2.0-dev libgmp-dev libjpeg-dev libkrb5-dev liblzma-dev libmagickcore-dev libmagickwand-dev libmaxminddb-dev libncurses5-dev libncursesw5-dev libpng-dev libpq-dev libreadline-dev libsqlite3-dev libssl-dev libtool libwebp-dev libxml2-dev libxslt-dev libyaml-dev make patch unzip xz-utils zlib1g-dev' ;;
            phpize) RUN 'apt-get install -y autoconf dpkg-dev file g++ gcc libc-dev make pkg-config re2c' ;;
            *) die "no recipe knows what $with is" ;;
        esac
    done
}
RUN() { layer "RUN /bin/sh -c $1 # buildkit" run "$1"; }
# COPY FILE TARGET [MODE]
COPY() {
    layer "COPY $1 $2 # buildkit" copy "$CONTEXT/$1" "$2" "${3:-644}" "$(sha256sum <"$CONTEXT/$1")"
}
ENV() { set_config "ENV $1" '.Env = [.Env[] | select(startswith($key) | not)] + [$pair]' --arg pair "$1" --arg key "${1%%=*}="; }
WORKDIR() { set_config "WORKDIR $1" '.WorkingDir = $dir' --arg dir "$1"; }
VOLUME() { set_config "VOLUME [$1]" '.Volumes[$dir] = {}' --arg dir "$1"; }
EXPOSE() { set_config "EXPOSE $1" '.ExposedPorts[$port] = {}' --arg port "$1/tcp"; }
STOPSIGNAL() { set_config "STOPSIGNAL $1" '.StopSignal = $signal' --arg signal "$1"; }
ENTRYPOINT() { set_config "ENTRYPOINT $1" '.Entrypoint = $words | .Cmd = null' --argjson words "$1"; }
CMD() { set_config "CMD $1" '.Cmd = $words' --argjson words "$1"; }
# Asked each second, because a test waits for it; Docker Hub's would wait half a minute.
HEALTHCHECK() {
    set_config "HEALTHCHECK &{[\"CMD-SHELL\" \"$1\"] \"1s\" \"5s\" \"2m0s\" '\\x03'}" \
        '.Healthcheck = {Test: ["CMD-SHELL", $test], Interval: 1e9, Timeout: 5e9, StartPeriod: 120e9, Retries: 3}' --arg test "$1"
}

# blob: keeps what it is given, and prints {digest, size}.
blob() {
    local file digest
    file=$(mktemp "$BLOBS/aside.XXXXXX")
    cat >"$file"
    digest=$(sha256sum "$file" | cut -d ' ' -f 1)
    jq -n --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$file")" '$ARGS.named'
    chmod 644 "$file"
    mv -T "$file" "$BLOBS/$digest"
}

# write_image NAME: writes the configuration and the manifest, and prints the index's entry.
write_image() {
    local config
    config=$(jq -cs --argjson config "$CONFIG" --argjson history "$HISTORY" \
        '{architecture: "amd64", os: "linux", created: $history[-1].created, config: $config,
          rootfs: {type: "layers", diff_ids: map("sha256:" + .diff_id)}, history: $history}' "${MADE[@]}" | blob)
    jq -cs --argjson config "$config" \
        '{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json",
          config: ({mediaType: "application/vnd.oci.image.config.v1+json"} + $config),
          layers: map({mediaType: "application/vnd.oci.image.layer.v1.tar+gzip", digest: ("sha256:" + .blob), size})}' "${MADE[@]}" |
        blob | jq -c --arg name "$1" \
        '{mediaType: "application/vnd.oci.image.manifest.v1+json"} + . +
         {platform: {architecture: "amd64", os: "linux"}, annotations: {"org.opencontainers.image.ref.name": $name}}'
}

# write_index: makes tags of all images that are there, and drops the blobs that none has.
write_index() {
    local used
    echo '{"imageLayoutVersion":"1.0.0"}' >"$IMAGES/oci/oci-layout"
    jq -s '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: .}' \
        "$IMAGES"/set/*.json >"$IMAGES/oci/aside.$$"
    mv -T "$IMAGES/oci/aside.$$" "$IMAGES/oci/index.json"
    used=$(jq -r '.manifests[].digest' "$IMAGES/oci/index.json" | while read -r digest; do
        echo "$digest"
        jq -r '.config.digest, .layers[].digest' "$BLOBS/${digest#sha256:}"
    done)
    # grep ends with 1 where it finds nothing, and mostly there is nothing to drop.
    find "$BLOBS" -type f -printf '%f\n' | { grep -vxFf <(sed 's/^sha256://' <<<"$used") || [ $? = 1 ]; } |
        while read -r unused; do rm "$BLOBS/$unused"; done
}
