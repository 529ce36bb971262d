#!/usr/bin/env bash
# What a read of 4 KiB takes of the processors, in the server and in fio, for a plain file and the same disk compressed:
# `scripts/block-cpu.sh [ROUNDS]`, as root. CPU time of the processes, which other programs on the machine disturb less than a rate.
# What Zstandard adds to the server's own time is to be compared with decompressing alone: `cargo bench -p lsmt --bench reads`.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The measurement"
need fio=fio python3=python3 fusermount3=fuse3
YOLOFS=$(realpath "${YOLOFS:-${CARGO_TARGET_DIR:-target}/release/yolofs}")
IMAGES=$(realpath "$IMAGES")
MIB=256 dir=$(mktemp -d) pids=()
finish() {
    for pid in "${pids[@]}"; do kill -INT "$pid" && wait "$pid" || true; done
    rm -rf "$dir"
}
trap finish EXIT
cd "$dir"
tar -cf disk.raw -C "$IMAGES" far
truncate -s ${MIB}M disk.raw
for codec in lz4 zstd; do "$YOLOFS" block convert --codec $codec --name $codec disk.raw images >/dev/null; done
for kind in raw lz4 zstd; do
    image=images/$kind
    [ $kind != raw ] || image=disk.raw
    mkdir $kind
    "$YOLOFS" block export $image --mount $kind >$kind.log 2>&1 &
    pids+=($!)
    timeout 20 bash -c "until [ -e $kind/disk ]; do sleep 0.1; done" || die "no export of $image: $(cat $kind.log)"
done
# User and kernel time of a process so far, in ticks.
ticks() { sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f12,13; }
for round in $(seq "${1:-3}"); do
    for depth in 32 1; do
        place=0
        for kind in raw lz4 zstd; do
            pid=${pids[$((place++))]}
            before=$(ticks "$pid")
            fio --name=reads --filename=$kind/disk --ioengine=libaio --direct=1 --rw=randread --bs=4k --readonly \
                --time_based=1 --norandommap=1 --runtime=3 --iodepth=$depth --size=${MIB}M --output-format=json --output=fio.json
            python3 - "$round" "$depth" "$kind" "$(getconf CLK_TCK)" $before $(ticks "$pid") <<'PY'
import json, sys
round, depth, kind, *numbers = sys.argv[1:]
tick, user, kernel, user_end, kernel_end = map(int, numbers)
job = json.load(open("fio.json"))["jobs"][0]
reads, rate = job["read"]["total_ios"], job["read"]["iops"]
micros = lambda ticks: ticks * 1e6 / tick / reads
fio = (job["usr_cpu"] + job["sys_cpu"]) * job["read"]["runtime"] * 10 / reads
server = micros(user_end - user), micros(kernel_end - kernel)
print(f"{round} depth {depth:2} {kind:4} {rate:7.0f}/s; us of CPU for a read: "
      f"{server[0]:5.1f} user and {server[1]:5.1f} kernel of the server, {fio:5.1f} of fio, {sum(server) + fio:5.1f} in all")
PY
        done
    done
done
