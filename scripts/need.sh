# Sourced by the other scripts: how they speak, what they need, what they keep.
# shellcheck shell=bash
set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
IMAGES=${YOLOFS_IMAGES:-$REPO/.cache/images}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

need_root() { [ "$(id -u)" = 0 ] || die "$1 needs root: it mounts. Run it as root, or with sudo -E."; }

# need COMMAND=PACKAGE...: installs the Debian packages whose commands are missing. apt-get fails where another one runs, and
# some of these scripts run beside each other: they take turns.
need() {
    local turn
    [ -n "$(packages_of_missing "$@")" ] || return 0
    command -v apt-get >/dev/null || die "missing, and there is no apt-get to install them: $(packages_of_missing "$@")"
    need_root "Installing $(packages_of_missing "$@")"
    mkdir -p "$REPO/.cache"
    exec {turn}>"$REPO/.cache/apt.lock"
    flock --timeout 900 "$turn" || die "another script has been installing packages for 15 minutes"
    apt_install "$(packages_of_missing "$@")"
    exec {turn}>&-
}

packages_of_missing() {
    local pair missing=()
    for pair; do command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}"); done
    echo "${missing[*]}"
}

apt_install() { # PACKAGES, in one word
    local packages
    read -ra packages <<<"$1"
    [ ${#packages[@]} -gt 0 ] || return 0 # whoever had the turn before has installed them
    say "installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >/dev/null || die "apt-get update failed: is the network there?"
    apt-get install -q -y --no-install-recommends "${packages[@]}" >/dev/null ||
        die "apt-get could not install: ${packages[*]}"
}

# Cargo, as new as rust-toolchain.toml asks; rustup fetches that version by itself.
need_cargo() {
    [ -d "$HOME/.cargo/bin" ] && PATH=$HOME/.cargo/bin:$PATH
    need cc=build-essential protoc=protobuf-compiler # for the linker, zstd's C and containerd's API
    command -v cargo >/dev/null && return
    apt-cache show rustup >/dev/null 2>&1 || die "cargo is missing, and this distribution has no rustup package.
Install Rust from https://rustup.rs, then run this again; rust-toolchain.toml picks the version."
    need rustup=rustup
    (cd "$REPO" && rustup toolchain install) || die "rustup could not install the pinned toolchain"
}

# How the programs in Go that tests use are built. All the same way and by the same version: so what they share, Go's own library
# first, is compiled once. Without what debuggers read, a tenth of the work (what a crash prints comes from elsewhere), and
# without copies of functions where they are called (-l), another quarter.
GO_FLAGS='-modcacherw -trimpath "-gcflags=all=-dwarf=false -l" -ldflags=-s'

# new_go MINOR FULL: prints a go command that is 1.MINOR or newer: one that is here, or FULL, such as 1.21.13. Debian
# 12's own is older, but the module proxy serves newer ones, as modules.
new_go() {
    local go has toolchain elsewhere dir
    for go in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        go=$(command -v "$go") || continue
        has=$("$go" version | sed -nE 's/.* go1\.([0-9]+).*/\1/p')
        if [ "${has:-0}" -ge "$1" ]; then echo "$go"; return; fi
    done
    need go=golang-go jq=jq
    toolchain=golang.org/toolchain@v0.0.1-go$2.linux-$(go env GOARCH)
    elsewhere=$(mktemp -d)
    printf 'module elsewhere\n' >"$elsewhere/go.mod"
    dir=$(cd "$elsewhere" && timeout 300 go mod download -json "$toolchain" | jq -r .Dir) ||
        die "$toolchain could not be fetched: is the Go module proxy reachable?"
    find "$dir/bin" "$dir/pkg/tool" -type f -exec chmod +x {} + # modules have no such bits
    echo "$dir/bin/go"
}

# kept OUT RECIPE...: true if OUT was made by these very recipe files.
kept() { [ -e "$1" ] && [ "$(cat "$1.recipe" 2>/dev/null)" = "$(recipe "${@:2}")" ]; }
# keep ASIDE OUT RECIPE...: puts a finished file in its place, whole or not at all.
keep() { mv -T "$1" "$2" && recipe "${@:3}" >"$2.recipe" && say "made $2"; }
recipe() { cat -- "$@" | sha256sum; }
