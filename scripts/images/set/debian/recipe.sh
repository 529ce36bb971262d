# A distribution, as people start it to look around.
# shellcheck shell=bash
FROM_DEBIAN
CMD '["bash","-lc","ls -lR /etc | sort | tail -n 1; id; dpkg -l"]'
