#!/usr/bin/env bash
# Makes wheels.tar: pytest and a kernel of Jupyter with all that they need, as wheels, for the tests of clients of sandboxes.
source "$(dirname "$0")/../need.sh"
here=$(cd "$(dirname "$0")" && pwd)
out=$IMAGES/wheels.tar
made_by=("$here/wheels.sh")
kept "$out" "${made_by[@]}" && exit

need pip3=python3-pip
mkdir -p "$IMAGES"
work=$(mktemp -d "$IMAGES/wheels.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
say "fetching pytest and Jupyter (downloads 10 MB)"
pip3 download -q --only-binary :all: -d wheels pytest ipykernel jupyter_client ||
    die "pip could not fetch them: is the index of packages reachable?"
tar -cf wheels.tar wheels
keep wheels.tar "$out" "${made_by[@]}"
