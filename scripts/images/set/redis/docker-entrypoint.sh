#!/bin/sh
# Gives the data to the server's user, and becomes that user.
set -e
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
    find . ! -user redis -exec chown redis:redis {} +
    exec setpriv --reuid=redis --regid=redis --clear-groups -- "$0" "$@"
fi
exec "$@"
