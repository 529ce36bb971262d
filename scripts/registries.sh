#!/usr/bin/env bash
# Builds olareg, a registry with the referrers API, for the tests: Debian's docker-registry has
# none. Versions and checksums are in scripts/registries.
source "$(dirname "$0")/need.sh"
cd "$REPO/scripts/registries"
OUT=$REPO/.cache/registries/olareg
kept "$OUT" go.mod go.sum tools.go && exit

GO=$(new_go 26 1.26.8)
mkdir -p "${OUT%/*}"
say "building olareg"
GOFLAGS="-mod=mod $GO_FLAGS" GOTOOLCHAIN=local CGO_ENABLED=0 timeout 600 "$GO" build -o "$OUT.new" github.com/olareg/olareg/cmd/olareg ||
    die "olareg could not be built: is the Go module proxy reachable?"
keep "$OUT.new" "$OUT" go.mod go.sum tools.go
