#!/usr/bin/env bash
# Builds a runc that makes idmapped mounts, for the tests of pods in user namespaces: Debian 12's 1.1 has none. By `go install`
# through the module proxy, without seccomp, which needs the headers of a library. Kept in .cache/runc. Some minutes, once.
source "$(dirname "$0")/need.sh"

RUNC=v1.4.0

out=$REPO/.cache/runc
kept "$out" "$0" && exit
need cc=build-essential
go=$(new_go 26 1.26.8)
aside=$out.part
rm -rf "$aside" "$out"
mkdir -p "$aside"
say "building runc $RUNC"
# Its first part, which makes the namespaces, is C.
GOBIN=$aside GOFLAGS=$GO_FLAGS GOTOOLCHAIN=local CGO_ENABLED=1 timeout 900 \
    "$go" install github.com/opencontainers/runc@$RUNC ||
    die "go install of runc $RUNC failed, or took over 15 minutes: is the Go module proxy reachable?"
keep "$aside" "$out" "$0"
