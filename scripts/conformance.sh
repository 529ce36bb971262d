#!/usr/bin/env bash
# Runs the suite of the OCI distribution specification against registries, directly and through nicfetch, and fails if a
# test passes directly and not through it. `scripts/conformance.sh [REGISTRY...]`: olareg and docker-registry, unless
# others are named; zot is run from $ZOT. The suite comes from the Go module proxy. $RESULTS keeps what it wrote.
source "$(dirname "$0")/need.sh"
cd "$REPO"
SUITE=github.com/opencontainers/distribution-spec/conformance@v0.0.0-20260831232431-97274622c111
need_root "The comparison"
need docker-registry=docker-registry curl=curl ip=iproute2
if [ -z "${IN_NAMESPACE:-}" ]; then
    # Built here: the namespace reaches nobody.
    scripts/registries.sh
    GO=$(new_go 26 1.26.8)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    say "building the suite"
    export GOTOOLCHAIN=local CGO_ENABLED=0
    GOBIN=$work GOFLAGS="-mod=mod $GO_FLAGS" timeout 600 "$GO" install "$SUITE" ||
        die "the suite could not be built: is the Go module proxy reachable?"
    (cd scripts/conformance && GOFLAGS=$GO_FLAGS timeout 300 "$GO" build -o "$work/tool" .)
    NICFETCH=${NICFETCH:-target/debug/nicfetch}
    [ -x "$NICFETCH" ] || die "build it first: cargo build -p cli ($NICFETCH is missing)"
    # A network of its own, so that all addresses are free, and processes that end with it.
    IN_NAMESPACE=1 NICFETCH=$NICFETCH work=$work unshare --net --pid --fork --kill-child "$0" "$@"
    exit
fi
ip link set lo up
RESULTS=${RESULTS:-$work/results}

answers() { # URL LOG: waits until somebody answers there
    local deadline=$((SECONDS + 30))
    until curl -s -o /dev/null "$1"; do
        [ $SECONDS -lt $deadline ] || die "nobody answers at $1: $(tail -3 "$2")"
        sleep 0.05
    done
}

registry() { # NAME DIR: becomes a registry with nothing in it, at port 6101
    mkdir -p "$2"
    exec >"$2.log" 2>&1
    case $1 in
    olareg) exec .cache/registries/olareg serve --dir "$2" --port 6101 --addr 127.0.0.1 --api-delete --api-blob-delete ;;
    zot)
        cat >"$2.json" <<JSON
{"distSpecVersion": "1.1.1", "storage": {"rootDirectory": "$2"}, "log": {"level": "error"},
 "http": {"address": "127.0.0.1", "port": "6101", "compat": ["docker2s2"]}}
JSON
        exec "${ZOT:?the path of zot}" serve "$2.json"
        ;;
    docker-registry)
        cat >"$2.yml" <<YAML
version: 0.1
storage: {filesystem: {rootdirectory: $2}, delete: {enabled: true}}
http: {addr: 127.0.0.1:6101}
YAML
        exec docker-registry serve "$2.yml"
        ;;
    *) die "no registry is called $1" ;;
    esac
}

suite() { # PORT DELETIONS DIR: its exit code says whether all passed, which no registry does
    OCI_REGISTRY=127.0.0.1:$1 OCI_TLS=disabled OCI_VERSION=1.1 OCI_LOG=error OCI_RESULTS_DIR=$3/results \
        OCI_API_BLOBS_DELETE=$2 OCI_API_MANIFESTS_DELETE=$2 OCI_API_TAGS_DELETE=$2 \
        timeout 500 "$work/conformance" >"$3/suite.log" 2>&1 || true
    [ -s "$3/results/junit.xml" ] || die "the suite wrote no results: $(tail -3 "$3/suite.log")"
}

run() { # REGISTRY DELETIONS DIR HOW: each run has an empty registry and an empty nicfetch
    local port=6101 pids=()
    mkdir -p "$3"
    registry "$1" "$3/registry" &
    pids+=($!)
    answers http://127.0.0.1:6101/v2/ "$3/registry.log"
    if [ "$4" = mirrored ]; then
        cat >"$3/nicfetch.toml" <<TOML
listen = "127.0.0.1:6102"
admin = "unix:$3/admin.sock"
store = "$3/store"
size = "4G"
tag_ttl_seconds = 0
absent_ttl_seconds = 0
[[upstreams]]
name = "docker.io"
url = "http://127.0.0.1:6101"
TOML
        "$NICFETCH" serve --config "$3/nicfetch.toml" >"$3/nicfetch.log" 2>&1 &
        pids+=($!)
        answers http://127.0.0.1:6102/v2/ "$3/nicfetch.log"
        "$work/tool" proxy 127.0.0.1:6103 http://127.0.0.1:6102 http://127.0.0.1:6101 >"$3/proxy.log" 2>&1 &
        pids+=($!)
        answers http://127.0.0.1:6103/v2/ "$3/proxy.log"
        port=6103
    fi
    suite $port "$2" "$3"
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
}

[ $# -gt 0 ] || set -- olareg docker-registry
failed=0
for name; do
    for deletions in false true; do
        at=$RESULTS/$name-deletions-$deletions
        run "$name" $deletions "$at/direct" direct
        run "$name" $deletions "$at/mirrored" mirrored
        # What a registry deletes, a cache still serves by its digest.
        may_differ='^$'
        [ $deletions = false ] || may_differ='/(blob|manifest)-delete'
        say "$name, deletions: $deletions"
        "$work/tool" compare "$at"/{direct,mirrored}/results/junit.xml "$may_differ" || failed=1
    done
done
[ $failed = 0 ] || die "nicfetch answers worse than the registry behind it"
