#!/bin/sh
# Runs a script or an option with node, and anything else as it is.
set -e
case ${1:-} in
-* | *.js | '') set -- node "$@" ;;
esac
exec "$@"
