#!/usr/bin/env bash
# Runs the fuzz targets of the repository, each for SECONDS (default 60), one after the other.
#
#   scripts/fuzz.sh [SECONDS [CRATE/TARGET...]]      scripts/fuzz.sh 600 blockservice/frames
#
# Crashing inputs are kept in crates/*/fuzz/artifacts/; what one shows becomes a test with a name.
# shellcheck source=scripts/need.sh
. "$(dirname "$0")/need.sh"
cd "$REPO"
need_cargo

seconds=${1:-60}
wanted=" ${*:2} "

if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install cargo-fuzz --locked
fi

# Seeds: boot images that are right, and some that are nearly so.
seeds=crates/bootimg/fuzz/corpus/open
mkdir -p "$seeds"
cp crates/bootimg/tests/fixtures/*.bimg "$seeds/"

for dir in crates/*/fuzz; do
    for target in "$dir"/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        name=$(basename "${dir%/fuzz}")/$target
        [ "$wanted" = "  " ] || [[ $wanted = *" $name "* ]] || continue
        say "$name, $seconds s"
        # 200 000 bytes: a little more than the largest seed.
        cargo +nightly fuzz run --fuzz-dir "$dir" "$target" -- \
            -max_total_time="$seconds" -max_len=200000 -rss_limit_mb=1024 -timeout=10
    done
done
