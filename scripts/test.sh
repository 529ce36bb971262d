#!/usr/bin/env bash
# Installs what the tests need and runs everything: format, lints, layers, links of documents, docs, and the tests,
# those that mount included. Needs root. `cargo xtask ci` is the quick loop without root.
source "$(dirname "$0")/need.sh"
cd "$REPO"
# A hung test must not hang the machine that runs it. Cold, the whole took 26 minutes on a fast machine of two cores on 2026-11-29, and
# 50 on the one that CI had; CI has 90.
STEP_LIMIT=${STEP_LIMIT:-70m}
step() { say "$*"; timeout --kill-after=10 "$STEP_LIMIT" "$@" || die "this failed (or took over $STEP_LIMIT): $*"; }

need_root "The test suite"
[ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module with 'modprobe fuse'"
need_cargo
say "free on this disk (some 8 GB are needed): $(df -h --output=avail . | tail -1)"
need fusermount3=fuse3 mmdebstrap=mmdebstrap setfattr=attr mkfs.ext4=e2fsprogs losetup=mount fio=fio \
    qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils nbdinfo=libnbd-bin cpio=cpio \
    xz=xz-utils busybox=busybox-static strip=binutils \
    dockerd=docker.io containerd=containerd runc=runc crun=crun podman=podman skopeo=skopeo umoci=umoci docker-registry=docker-registry \
    jq=jq pigz=pigz chromium=chromium htpasswd=apache2-utils openssl=openssl setcap=libcap2-bin apparmor_parser=apparmor
# What the tests start is made beside what follows, once: images take some seven minutes, and today's engines twelve.
mkdir -p .cache
beside() { # NAME COMMAND...: its output goes to .cache/NAME.log
    "${@:2}" >".cache/$1.log" 2>&1 &
}
made() { # NAME PID
    say "waiting for $1 (.cache/$1.log)"
    wait "$2" || die "$1: they could not be made: $(tail -5 ".cache/$1.log")"
}
make_engines() { scripts/engines.sh && scripts/runc.sh; }
make_images() {
    scripts/images/root.sh && scripts/images/disk.sh && scripts/images/kernel.sh && scripts/images/light.sh &&
        scripts/images/wheels.sh && scripts/images/set.sh nginx redis python && scripts/registries.sh
}
beside engines make_engines
engines=$!
beside images make_images
images=$!

# Without tables of lines, a fifth less is to be compiled and linked; a panic says its line all the same.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 RUST_BACKTRACE=1 YOLOFS_IMAGES=$IMAGES
# What is tested is checked while it is compiled: see there.
CLIPPY=$(command -v clippy-driver) || CLIPPY=$(rustc --print sysroot)/bin/clippy-driver
[ -x "$CLIPPY" ] || die "clippy is missing: rustup component add clippy"
export CLIPPY DOCS=$REPO/target/docs RUSTC_WORKSPACE_WRAPPER=$REPO/scripts/compile.sh RUSTFLAGS="-D warnings"
step cargo fmt --check
step cargo xtask layers
step cargo xtask size
step cargo xtask flags
step cargo xtask links
# Known vulnerabilities of what comes into the build, where their database or a copy of it can be had.
database=https://github.com/RustSec/advisory-db
copy=.cache/advisory-db
advisories() { GIT_TERMINAL_PROMPT=0 timeout 120 git "$@" >/dev/null 2>&1; }
unchecked=
if advisories -C "$copy" pull --depth 1 --rebase || advisories clone --depth 1 "$database" "$copy"; then
    step cargo xtask deps --advisories "$copy"
elif [ -d "$copy/crates" ]; then
    step cargo xtask deps --advisories "$copy"
    unchecked="advisories that are newer than the copy in $copy, because $database cannot be reached"
else
    step cargo xtask deps
    unchecked="known vulnerabilities of dependencies, because $database cannot be reached"
fi
[ -z "$unchecked" ] || say "NOT CHECKED: $unchecked"
types() { RUSTC_WORKSPACE_WRAPPER=$REPO/scripts/types.sh step cargo build --quiet "$@"; }
types -p yolofs --lib # with nothing above it in the build
types -p cli --lib    # and this as a user gets it: no feature that only tests ask for
# musl has other types in places; what calls the C library directly shows that first.
musl=x86_64-unknown-linux-musl
if [ -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
    step cargo check --quiet -p rawio --target $musl
else
    say "rawio is not compiled for musl: rustup target add $musl"
fi
# The instructions that start a process are another processor's there. A library is compiled without a linker, and a check
# would not assemble them.
other=aarch64-unknown-linux-gnu
if [ -d "$(rustc --print sysroot)/lib/rustlib/$other" ]; then
    step cargo build --quiet -p rawio --target $other
else
    say "rawio is not compiled for aarch64: rustup target add $other"
fi
step packaging/check.sh

step cargo xtask test --no-run
step cargo test --quiet --workspace --all-features --benches --no-run # what measures functions is not run here
made images "$images"
made engines "$engines"
# The tests come last: whoever reads the output finds at its end who failed, who is flaky, and the sum. All
# crates at once, so that each is built once; unprivileged tests are those of `cargo test`, and among these.
step cargo xtask test --json target/suite.json
step scripts/conformance.sh # with what the tests have built
[ -z "$unchecked" ] || say "NOT CHECKED: $unchecked"
