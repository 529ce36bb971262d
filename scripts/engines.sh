#!/usr/bin/env bash
# Builds the engines of today, which Debian 12 does not have, for the tests that run them: containerd 2.4, its shim and
# client, Docker 29 and CNI plug-ins, by `go install` through the module proxy. Kept in .cache/engines, or in the
# directory that YOLOFS_ENGINES names. Some ten minutes on two cores, once.
source "$(dirname "$0")/need.sh"

CONTAINERD=v2.4.2 DOCKER=v2.0.0-beta.7 CNI=v1.9.0 # moby's v2.0.0-beta.7 is Docker 29

out=$(realpath -m "${YOLOFS_ENGINES:-$REPO/.cache/engines}")
kept "$out" "$0" && exit
go=$(new_go 26 1.26.8)
aside=$out.part
rm -rf "$aside"
mkdir -p "$aside/bin/cni"
# Go's own caches stay, as after any `go install`: some 3 GB, which make the next build a matter of a minute.
export GOBIN=$aside/bin GOFLAGS=$GO_FLAGS GOTOOLCHAIN=local CGO_ENABLED=0
say "building containerd $CONTAINERD and Docker $DOCKER"
install() { timeout 1800 "$go" install "$@" || die "go install $* failed, or took over half an hour: is the Go module proxy reachable?"; }
install github.com/containerd/containerd/v2/cmd/{containerd,ctr,containerd-shim-runc-v2}@$CONTAINERD
install github.com/moby/moby/v2/cmd/dockerd@$DOCKER
GOBIN=$GOBIN/cni install github.com/containernetworking/plugins/plugins/{main/{bridge,loopback},ipam/host-local}@$CNI
keep "$aside" "$out" "$0"
