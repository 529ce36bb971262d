#!/bin/sh
# Becomes the database's user: it refuses to run as root.
set -e
if [ "$1" = postgres ] && [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 2775 /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --clear-groups -- "$0" "$@"
fi
exec "$@"
