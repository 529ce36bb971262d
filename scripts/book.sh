#!/usr/bin/env bash
# Builds the documents as a book, book/index.html, with mdBook. Links are checked by `cargo xtask links`.
source "$(dirname "$0")/need.sh"
cd "$REPO"
command -v mdbook >/dev/null ||
    die "mdbook is missing: 'cargo install mdbook --locked', or a release of https://github.com/rust-lang/mdBook"
mdbook build
say "the book is $REPO/book/index.html"
