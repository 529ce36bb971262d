#!/usr/bin/env bash
# Builds the engines of today, which Debian 12 does not have, for the tests that run them: containerd 2.4, its shim and
# client, Docker 29 and CNI plug-ins, by `go install` through the module proxy. Kept in .cache/engines, or in the
# directory that YOLOFS_ENGINES names. Some 8 minutes on two cores, once.
source "$(dirname "$0")/need.sh"

GO=1.26.8 CONTAINERD=v2.4.2 DOCKER=v2.0.0-beta.7 CNI=v1.9.0 # moby's v2.0.0-beta.7 is Docker 29

out=${YOLOFS_ENGINES:-$REPO/.cache/engines}
if kept "$out" "$0"; then exit; fi
need go=golang-go
aside=$out.part
rm -rf "$aside"
mkdir -p "$aside/bin/cni"
out=$(realpath -m "$out") aside=$(realpath "$aside")
export GOPATH=$aside/go GOBIN=$aside/bin GOFLAGS=-modcacherw CGO_ENABLED=0

# Debian's Go is too old for them, and new enough to fetch a newer one, which is a module as well.
if ! [[ $(go env GOVERSION) > go${GO%.*} ]]; then
    toolchain=golang.org/toolchain@v0.0.1-go$GO.linux-$(go env GOARCH)
    go mod download "$toolchain" || die "go cannot fetch $toolchain: is the module proxy reachable ($(go env GOPROXY))?"
    go=$GOPATH/pkg/mod/$toolchain
    chmod -R a+x "$go/bin" "$go/pkg/tool" # a module has no programs
    export PATH=$go/bin:$PATH GOROOT=$go
fi
export GOTOOLCHAIN=local
say "building containerd $CONTAINERD and Docker $DOCKER with $(go env GOVERSION)"
install() { go install "$@" || die "go install $* failed"; }
install github.com/containerd/containerd/v2/cmd/{containerd,ctr,containerd-shim-runc-v2}@$CONTAINERD
install github.com/moby/moby/v2/cmd/dockerd@$DOCKER
GOBIN=$GOBIN/cni install github.com/containernetworking/plugins/plugins/{main/{bridge,loopback},ipam/host-local}@$CNI
rm -rf "$GOPATH"
keep "$aside" "$out" "$0"
