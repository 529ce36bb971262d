#!/usr/bin/env bash
# What cargo calls instead of rustc (RUSTC_WORKSPACE_WRAPPER) where a crate of the workspace is only to be checked, with
# features that its tests do not have: rustc writes what other crates are checked against, and no code. Cargo itself would
# check all that the crate needs of other people's, too, which is built for the tests anyway.
set -eu
arguments=()
for argument; do
    case $argument in
    --emit=dep-info,metadata,link) argument=--emit=dep-info,metadata ;;
    esac
    arguments+=("$argument")
done
exec "${arguments[@]}"
