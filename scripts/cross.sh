#!/usr/bin/env bash
# Builds nicfetch for the ARM processor of a SmartNIC, as one file that needs nothing of the system
# there, and tries it in an emulator: it mirrors a registry and verifies what it has. Sources are not
# tried: QEMU emulates openat2(2) from version 9 on, and Debian 12 has 7.2.
#
#   scripts/cross.sh [PROFILE]       release unless said otherwise; dev is made sooner
# shellcheck source=scripts/need.sh
. "$(dirname "$0")/need.sh"
cd "$REPO"
need_cargo
need aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu qemu-aarch64-static=qemu-user-static \
    docker-registry=docker-registry skopeo=skopeo umoci=umoci jq=jq

profile=${1:-release}
target=aarch64-unknown-linux-musl
rustup target list --installed | grep -qx "$target" || rustup target add "$target" ||
    die "rustup could not install the target $target"

# C parts (zstd, blake3, ring) are compiled with Debian's headers, and must use nothing of its libc
# that musl lacks: checked variants of functions, and atomic operations from libgcc.
export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_musl=aarch64-linux-gnu-ar
export CFLAGS_aarch64_unknown_linux_musl="-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -mno-outline-atomics"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
say "building nicfetch for $target ($profile)"
cargo build --profile "$profile" -p cli --bin nicfetch --target "$target"
program=${CARGO_TARGET_DIR:-target}/$target/${profile/#dev/debug}/nicfetch

said=$(aarch64-linux-gnu-readelf --file-header --program-headers "$program")
grep -q 'Machine: *AArch64' <<<"$said" || die "$program is for another processor"
! grep -q INTERP <<<"$said" || die "$program is not static: it wants a loader"

work=$(mktemp -d)
pids=()
tidy() {
    # Emulated, it does not hear SIGTERM.
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap tidy EXIT
nicfetch() { qemu-aarch64-static "$program" "$@"; }
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
# within SECONDS COMMAND...: waits until it succeeds.
within() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do [ "$SECONDS" -lt "$end" ] || die "not within $1 s: ${*:2}"; sleep 0.1; done
}

say "$(nicfetch --version), $(stat -c %s "$program") bytes"

# A registry with an image of one file.
mkdir "$work/tree"
head -c 3000000 /dev/urandom >"$work/tree/noise"
umoci init --layout "$work/image"
umoci new --image "$work/image:v1"
umoci insert --image "$work/image:v1" "$work/tree" /
for _ in {1..10}; do
    port=$((20000 + RANDOM % 20000))
    listens $port && continue
    cat >"$work/registry.yml" <<YML
version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: "127.0.0.1:$port"}
YML
    docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
    registry=$!
    pids+=("$registry")
    until listens $port || ! kill -0 "$registry" 2>/dev/null; do sleep 0.1; done
    kill -0 "$registry" 2>/dev/null && break
done
skopeo copy --quiet --insecure-policy --dest-tls-verify=false "oci:$work/image:v1" "docker://127.0.0.1:$port/library/noise:v1"

export NICFETCH_ADMIN=unix:$work/admin.sock
qemu-aarch64-static "$program" serve --upstream "http://127.0.0.1:$port" --listen 127.0.0.1:0 --store "$work/store" \
    --admin "$NICFETCH_ADMIN" --size 1G --blocks "unix:$work/blocks.sock" --blocks-open >"$work/said" &
pids+=("$!")
within 120 grep -q '^blocks' "$work/said"
mirror=$(sed -n 's/^clients *//p' "$work/said")
[ "$(nicfetch status --json | jq .ready)" = true ] || die "it is not ready"
skopeo copy --quiet --insecure-policy --src-tls-verify=false "docker://$mirror/library/noise:v1" "oci:$work/pulled:v1"
[ "$(nicfetch status --json | jq .blobs)" = 2 ] || die "it does not keep the layer and the configuration"
verified=$(nicfetch verify --json)
jq -e '.damaged == 0 and .blobs == 2' <<<"$verified" >/dev/null || die "it finds damage: $verified"
say "$program is static, for AArch64, and mirrors and verifies"
