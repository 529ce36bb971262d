#!/usr/bin/env bash
# Times `docker run` under an engine of its own when the page cache was dropped: with nothing held, with whole files
# held by vmtouch, and with the pages that `yolofs pin record` found; all beside warm starts, interleaved. Says how
# much each holds. Run it where nobody else has the engine's programs mapped: those cannot be dropped. `scripts/bench-pin.sh [ROUNDS]`, 10 by default; PROFILE=dev takes a debug build.
source "$(dirname "$0")/need.sh"
cd "$REPO"
need_root "The bench"
need_cargo
need dockerd=docker.io containerd=containerd runc=runc vmtouch=vmtouch mmdebstrap=mmdebstrap jq=jq
rounds=${1:-10}
profile=${PROFILE:-release}
say "building"
cargo build --profile "$profile" -p cli --bin yolofs --bin bootimg
bin=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
scripts/images/root.sh
# Debian's engine, whatever else is in the way.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
work=$(mktemp -d "${TMPDIR:-/tmp}/bench-pin.XXXXXX")
export YOLOFS_STORE=$work/store YOLOFS_RUN_DIR=$work/run YOLOFS_PINS=$work/pins DOCKER_HOST=unix://$work/docker.sock
yolofs=$(realpath "$bin/yolofs") bootimg=$(realpath "$bin/bootimg")
declare -A pids
stop() { # NAME: ends one of our processes and waits for it
    [ -n "${pids[$1]:-}" ] || return 0
    kill "${pids[$1]}" 2>/dev/null || true
    wait "${pids[$1]}" 2>/dev/null || true
    unset "pids[$1]"
}
finish() {
    "$yolofs" docker detach --all >/dev/null 2>&1 || true
    for name in vmtouch pins dockerd; do stop "$name"; done
    rm -rf "$work" || true
}
trap finish EXIT
# How an engine starts, a container runs, and the engine ends: what is recorded.
cat >"$work/engine.sh" <<'S'
set -e
dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/docker.pid" -H "$DOCKER_HOST" --bridge none --iptables=false >>"$1/dockerd.log" 2>&1 &
engine=$!
trap 'kill $engine; wait $engine || true' EXIT
until docker version >/dev/null 2>&1; do kill -0 $engine; read -rt 0.1 <>/dev/null || true; done
if [ -n "$2" ]; then docker import "$2" bench >/dev/null; fi
if [ -n "$3" ]; then wait $engine; else docker run --rm --network none bench /bin/true; fi
S
engine() { bash "$work/engine.sh" "$work" "$@"; }
start() { docker run --rm --network none bench /bin/true; }
drop() { sync; echo 1 >/proc/sys/vm/drop_caches; }
warm_image() { "$bootimg" prewarm docker://bench >/dev/null; }

say "recording what a start of the engine and of a container touches"
engine "$IMAGES/root.tar" ""
# The engine's own notes about its images are files of the host, too; the layers of images are not.
under=()
for dir in /usr /bin /sbin /lib /lib64 /etc /opt "$work"/data/{image,network,volumes,containerd,buildkit}; do under+=(--under "$dir"); done
"$yolofs" pin record --name docker "${under[@]}" --json -- bash "$work/engine.sh" "$work" "" "" >"$work/recorded.json"
jq . "$work/recorded.json" >&2
bash "$work/engine.sh" "$work" "" stay & pids[dockerd]=$!
until docker version >/dev/null 2>&1; do kill -0 "${pids[dockerd]}"; sleep 0.1; done
say "recording the image, and serving it"
"$bootimg" record docker://bench -- /bin/true >&2
"$yolofs" docker attach bench >&2

# The programs and their libraries, whole: what somebody without a recording would hold.
files=(/usr/bin/docker /usr/sbin/dockerd /usr/bin/containerd /usr/bin/containerd-shim-runc-v2 /usr/sbin/runc)
for file in "${files[@]}"; do ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true; done | sort -u >"$work/libraries"
mapfile -t libraries <"$work/libraries"
locked() { awk '/^VmLck/ {print $2 * 1024}' "/proc/$1/status"; }
hold_vmtouch() { # it says nothing, and holds all when it holds no more than half a second before
    local now=0 before
    vmtouch -q -l "${files[@]}" "${libraries[@]}" >/dev/null & pids[vmtouch]=$!
    until before=$now; now=$(locked "${pids[vmtouch]}"); [ "$now" -gt 0 ] && [ "$now" = "$before" ]; do sleep 0.5; done
}
hold_pins() { # all of it, or the bench says which limit refuses some
    "$yolofs" pin serve --budget 1G & pids[pins]=$!
    until "$yolofs" pin status --json | jq -e '.pid' >/dev/null; do kill -0 "${pids[pins]}"; done
    "$yolofs" pin status --json | jq -e '.left_out_bytes == 0 and .errors == 0' >/dev/null || die "$("$yolofs" pin status)"
}
say "recording what docker run touches while the engine runs"
engine=$(cat "$work/docker.pid")
with="--with $engine --with $(pgrep -P "$engine" -x containerd)"
# shellcheck disable=SC2086
"$yolofs" pin record --name run "${under[@]}" $with -- docker run --rm --network none bench /bin/true >&2
declare -A held=([warm]=0 [cold]=0 [image]=0)
hold_vmtouch; held[vmtouch]=$(locked "${pids[vmtouch]}"); stop vmtouch
for name in docker run; do
    "$yolofs" pin drop --all >/dev/null; "$yolofs" pin apply "$name" >/dev/null 2>&1 || true
    hold_pins; held[$name]=$(locked "${pids[pins]}"); stop pins
done

timed() { # CASE: one start, in microseconds, into a file
    local from=${EPOCHREALTIME/./}
    start
    echo $((${EPOCHREALTIME/./} - from)) >>"$work/$1.us"
}
for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    start; start; timed warm
    drop; timed cold
    drop; warm_image; timed image
    hold_vmtouch; drop; warm_image; timed vmtouch; stop vmtouch
    for name in docker run; do
        "$yolofs" pin drop --all >/dev/null; "$yolofs" pin apply "$name" >/dev/null 2>&1 || true
        hold_pins; drop; warm_image; timed "$name"; stop pins
    done
done
median() { sort -n "$work/$1" | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }
spread() { sort -n "$work/$1.us" | awk '{v[NR]=$1} END {printf "%.0f to %.0f", v[1] / 1000, v[NR] / 1000}'; }
mib() { awk -v b="$1" 'BEGIN {printf "%.1f", b / 1048576}'; }
warm=$(median warm.us)
say "load $(cut -d' ' -f1-3 /proc/loadavg)"
printf '| case | held, MiB | of whole files | median, ms | spread, ms | to warm |\n| --- | --- | --- | --- | --- | --- |\n'
for case in warm cold image vmtouch docker run; do
    us=$(median $case.us)
    printf '| %s | %s | %s %% | %s | %s | %s |\n' "$case" "$(mib "${held[$case]}")" $((held[$case] * 100 / held[vmtouch])) \
        $((us / 1000)) "$(spread $case)" "$(awk -v a="$us" -v b="$warm" 'BEGIN {printf "%.2f", a / b}')"
done
