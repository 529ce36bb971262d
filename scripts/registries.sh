#!/usr/bin/env bash
# Builds olareg, a registry with the referrers API, for the tests: Debian's docker-registry has
# none. Versions and checksums are in scripts/registries.
source "$(dirname "$0")/need.sh"
cd "$REPO/scripts/registries"
OUT=$REPO/.cache/registries/olareg
kept "$OUT" go.mod go.sum tools.go && exit

# Debian 12's own Go is too old: its backports and go.dev's have their own places.
new_go() {
    local go
    for go in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        go=$(command -v "$go") && "$go" version | grep -qE 'go1\.(2[1-9]|[3-9][0-9])' && echo "$go" && return
    done
    die "olareg needs Go 1.21 or newer: install golang-1.22-go from bookworm-backports, or from https://go.dev/dl"
}

GO=$(new_go)
mkdir -p "${OUT%/*}"
say "building olareg"
GOFLAGS=-mod=mod GOTOOLCHAIN=local timeout 600 "$GO" build -o "$OUT.new" github.com/olareg/olareg/cmd/olareg ||
    die "olareg could not be built: is the Go module proxy reachable?"
keep "$OUT.new" "$OUT" go.mod go.sum tools.go
