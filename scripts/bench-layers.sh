#!/usr/bin/env bash
# Compares a pull of an image of many layers, all of which the store knows, with containerd's overlayfs, in turns; and the
# Prepare of a container right after it. Prints medians and ratios.
#   scripts/bench-layers.sh [--rounds N] [--layers N]     needs root, the engines of scripts/engines.sh, YOLOFS (a build)
source "$(dirname "$0")/need.sh"
rounds=5 layers=120
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --layers) layers=$2 ;;
    *) die "unknown option $1" ;;
    esac
    shift 2
done
need_root "bench-layers"
need docker-registry=docker-registry skopeo=skopeo jq=jq python3=python3 busybox=busybox-static
yolofs=${YOLOFS:-$REPO/target/release/yolofs}
[ -x "$yolofs" ] || die "build it first: cargo build --release -p cli ($yolofs is missing), or name one in YOLOFS"
engines=$REPO/.cache/engines/bin
[ -x "$engines/containerd" ] || die "run scripts/engines.sh first"
export PATH=$engines:$PATH

work=$(mktemp -d)
export YOLOFS_STORE=$work/store YOLOFS_RUN_DIR=$work/run
started=()
finish() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null; done || true
    grep -o " $work[^ ]*" /proc/mounts | sort -r | xargs -r umount --lazy || true
    rm -rf --one-file-system "$work"
}
trap finish EXIT
# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    until "${@:2}" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || die "waited in vain: ${*:2} (see $work)"
        sleep 0.02
    done
}

say "making an image of $layers layers"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
ref=localhost:$port/many:1
python3 - "$work/layout" "$layers" <<'PY'
import hashlib, io, json, os, random, sys, tarfile
out, layers = sys.argv[1], int(sys.argv[2])
blobs = os.path.join(out, "blobs/sha256")
os.makedirs(blobs)
def blob(data):
    name = hashlib.sha256(data).hexdigest()
    open(os.path.join(blobs, name), "wb").write(data)
    return {"digest": "sha256:" + name, "size": len(data)}
made, random = [], random.Random(7)
for number in range(layers):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        def add(path, data, mode=0o644):
            about = tarfile.TarInfo(path)
            about.size, about.mode, about.mtime = len(data), mode, 1_700_000_000
            tar.addfile(about, io.BytesIO(data))
        if number == 0:
            add("bin/busybox", open("/bin/busybox", "rb").read(), 0o755)
            link = tarfile.TarInfo("bin/sh")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for file in range(20):
            add(f"layer{number}/file{file}", random.randbytes(8192))
    made.append(buffer.getvalue())
config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]},
          "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest() for tar in made]}}
media = "application/vnd.oci.image"
layer = lambda tar: {"mediaType": media + ".layer.v1.tar", **blob(tar)}
manifest = {"schemaVersion": 2, "mediaType": media + ".manifest.v1+json",
            "config": {"mediaType": media + ".config.v1+json", **blob(json.dumps(config).encode())},
            "layers": [layer(tar) for tar in made]}
index = {"schemaVersion": 2, "manifests": [
    {"mediaType": manifest["mediaType"], **blob(json.dumps(manifest).encode()),
     "annotations": {"org.opencontainers.image.ref.name": "1"}}]}
json.dump(index, open(os.path.join(out, "index.json"), "w"))
json.dump({"imageLayoutVersion": "1.0.0"}, open(os.path.join(out, "oci-layout"), "w"))
chain = None
for diff in config["rootfs"]["diff_ids"]:
    chain = diff if chain is None else "sha256:" + hashlib.sha256(f"{chain} {diff}".encode()).hexdigest()
open(os.path.join(out, "chain"), "w").write(chain)
PY
top=$(cat "$work/layout/chain")
cat >"$work/registry.yml" <<YML
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: "127.0.0.1:$port"}
YML
docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
started+=($!)
wait_for 30 curl -fs "http://localhost:$port/v2/"
skopeo copy --quiet --dest-tls-verify=false "oci:$work/layout:1" "docker://$ref"

say "starting containerd and yolofs snapshotter"
sed -e "s,^version = 3$,version = 3\nroot = \"$work/containerd\"\nstate = \"$work/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"\, \"io.containerd.cri.v1.images\"\, \"io.containerd.cri.v1.runtime\"\, \"io.containerd.nri.v1.nri\"]," \
    -e "s,/run/yolofs/snapshotter.sock,$work/yolofs.sock," -e "s,/var/lib/yolofs/snapshotter,$work/snapshotter," \
    "$REPO/packaging/containerd/config-v3.toml" >"$work/config.toml"
printf '[grpc]\naddress = "%s/sock"\n' "$work" >>"$work/config.toml"
"$yolofs" snapshotter --root "$work/snapshotter" --address "$work/yolofs.sock" --containerd "$work/sock" \
    --containerd-root "$work/containerd" --auto-record --until exit >"$work/yolofs.log" 2>&1 &
started=($! "${started[@]}")
wait_for 30 test -S "$work/yolofs.sock"
containerd --config "$work/config.toml" >"$work/containerd.log" 2>&1 &
started=($! "${started[@]}")
ctr() { command ctr --address "$work/sock" "$@" 2> >(grep -v DEPRECATION >&2); }
wait_for 30 ctr version
status() { "$yolofs" snapshotter status --json | jq -e ".[0] | $1"; }
empty() { [ -z "$(ls -A "$work/$1/snapshots" 2>/dev/null)" ]; }
forget() {
    ctr images rm --sync "$ref" >/dev/null
    wait_for 60 empty "$1"
}
pull() { ctr images pull --plain-http --snapshotter "$1" "$ref" >"$work/pull.log"; }
place() { case $1 in yolofs) echo snapshotter ;; *) echo containerd/io.containerd.snapshotter.v1.overlayfs ;; esac }

say "recording a start that reads of each layer"
pull yolofs
ctr run --rm --snapshotter yolofs --null-io "$ref" "bench-layers-$$" /bin/sh -c \
    'for layer in /layer*; do read x <"$layer/file0"; done; true' || die "the container failed"
wait_for 120 status "([.layers[].boot.prewarm] | length >= $layers and all(. == \"done\"))"
forget "$(place yolofs)"

now() { date +%s%N; }
for round in $(seq "$rounds"); do
    order="overlayfs yolofs"
    [ $((round % 2)) = 0 ] && order="yolofs overlayfs"
    for snapshotter in $order; do
        began=$(now)
        pull "$snapshotter"
        pulled=$(now)
        ctr snapshots --snapshotter "$snapshotter" prepare bench "$top" >/dev/null
        prepared=$(now)
        echo "$snapshotter $(((pulled - began) / 1000000)) $(((prepared - pulled) / 1000000))" | tee -a "$work/times" >&2
        if [ "$snapshotter" = yolofs ]; then
            wait_for 60 status "([.layers[].state | select(. == \"serving\")] | length >= $layers)"
            say "  all $layers layers are served $((($(now) - pulled) / 1000000)) ms after the pull"
        fi
        ctr snapshots --snapshotter "$snapshotter" rm bench
        forget "$(place "$snapshotter")"
    done
done
python3 - "$work/times" <<'PY'
import statistics, sys
times = {}
for line in open(sys.argv[1]):
    name, pull, prepare = line.split()
    times.setdefault(name, []).append((int(pull), int(prepare)))
both = {}
for name, rows in times.items():
    pull, prepare = (statistics.median(column) for column in zip(*rows))
    whole = statistics.median(sum(row) for row in rows)
    both[name] = (pull, prepare, whole)
    print(f"{name:10} pull {pull:6.0f} ms   Prepare {prepare:6.0f} ms   together {whole:6.0f} ms   ({len(rows)} rounds)")
theirs, ours = both["overlayfs"], both["yolofs"]
print(f"yolofs to overlayfs: pull {ours[0] / theirs[0]:.2f}, together {ours[2] / theirs[2]:.2f}")
PY
