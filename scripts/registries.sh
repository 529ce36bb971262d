#!/usr/bin/env bash
# Builds olareg, a registry with the referrers API, for the tests: Debian's docker-registry has
# none. Versions and checksums are in scripts/registries.
source "$(dirname "$0")/need.sh"
cd "$REPO/scripts/registries"
OUT=$REPO/.cache/registries/olareg
kept "$OUT" go.mod go.sum && exit
need go=golang-go jq=jq
mkdir -p "${OUT%/*}"

# Debian 12's Go is older than olareg asks for. The module proxy has newer ones, as modules.
GO=go
minor=$(go env GOVERSION | sed 's/^go1\.\([0-9]*\).*/\1/')
if [ "$minor" -lt 21 ]; then
    toolchain=golang.org/toolchain@v0.0.1-go1.21.13.linux-$(go env GOARCH)
    elsewhere=$(mktemp -d)
    printf 'module elsewhere\n' >"$elsewhere/go.mod"
    dir=$(cd "$elsewhere" && timeout 300 go mod download -json "$toolchain" | jq -r .Dir) ||
        die "$toolchain could not be fetched: is the Go module proxy reachable?"
    find "$dir/bin" "$dir/pkg/tool" -type f -exec chmod +x {} + # modules have no such bits
    GO=$dir/bin/go
fi
say "building olareg"
GOFLAGS=-mod=mod timeout 600 "$GO" build -o "$OUT.new" github.com/olareg/olareg/cmd/olareg ||
    die "olareg could not be built: is the Go module proxy reachable?"
keep "$OUT.new" "$OUT" go.mod go.sum
