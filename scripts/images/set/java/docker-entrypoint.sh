#!/bin/sh
# Runs the command with the options that an administrator set.
set -e
[ "${1:-}" = java ] && shift && set -- java ${JAVA_OPTS:-} "$@"
exec "$@"
