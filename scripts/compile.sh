#!/usr/bin/env bash
# What cargo calls instead of rustc for each crate of the workspace (RUSTC_WORKSPACE_WRAPPER), so that what is tested is
# checked while it is compiled, and nothing is compiled a second time only to be checked:
#   - clippy's driver compiles all programs and tests. Tests of a library come with all its code, so that rustc may
#     compile the library itself, with its own lints;
#   - the documentation of each library is made with the same dependencies, for its warnings.
# CLIPPY names clippy's driver, and DOCS a directory for the documentation. In bash, since dash drops the variables that
# cargo names after programs with a hyphen.
set -eu
rustc=$1
shift
all=" $* "
if [[ $all != *" --crate-type lib "* || $all = *" --test "* ]]; then exec "$CLIPPY" "$rustc" "$@"; fi
if grep -q '^test = false' "$CARGO_MANIFEST_DIR/Cargo.toml"; then # perhaps of the library
    "$CLIPPY" "$rustc" "$@"
else
    "$rustc" "$@"
fi
# All but where rustc was to write what: rustdoc writes elsewhere.
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --emit=*) ;;
    --out-dir) shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
exec rustdoc "${arguments[@]}" --out-dir "$DOCS" -D warnings
