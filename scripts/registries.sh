#!/usr/bin/env bash
# Builds olareg, a registry with the referrers API, for the tests: Debian's docker-registry has
# none. Versions and checksums are in scripts/registries.
source "$(dirname "$0")/need.sh"
cd "$REPO/scripts/registries"
OUT=$REPO/.cache/registries/olareg
kept "$OUT" go.mod go.sum tools.go && exit

# Go 1.21 or newer. Debian 12's own is older, but the module proxy serves newer ones, as modules.
new_go() {
    local go toolchain elsewhere dir
    for go in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        go=$(command -v "$go") && "$go" version | grep -qE 'go1\.(2[1-9]|[3-9][0-9])' && echo "$go" && return
    done
    need go=golang-go jq=jq
    toolchain=golang.org/toolchain@v0.0.1-go1.21.13.linux-$(go env GOARCH)
    elsewhere=$(mktemp -d)
    printf 'module elsewhere\n' >"$elsewhere/go.mod"
    dir=$(cd "$elsewhere" && timeout 300 go mod download -json "$toolchain" | jq -r .Dir) ||
        die "$toolchain could not be fetched: is the Go module proxy reachable?"
    find "$dir/bin" "$dir/pkg/tool" -type f -exec chmod +x {} + # modules have no such bits
    echo "$dir/bin/go"
}

GO=$(new_go)
mkdir -p "${OUT%/*}"
say "building olareg"
GOFLAGS=-mod=mod GOTOOLCHAIN=local timeout 600 "$GO" build -o "$OUT.new" github.com/olareg/olareg/cmd/olareg ||
    die "olareg could not be built: is the Go module proxy reachable?"
keep "$OUT.new" "$OUT" go.mod go.sum tools.go
