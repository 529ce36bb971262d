#!/bin/sh
# Runs what an administrator put into /docker-entrypoint.d, then the command.
set -e
for script in /docker-entrypoint.d/*.sh; do
    [ -x "$script" ] || continue
    "$script"
done
exec "$@"
