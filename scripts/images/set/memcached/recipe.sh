# A cache for web applications.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y netcat-openbsd'
RUN 'apt-get install -y memcached'
EXPOSE 11211
CMD '["memcached","-u","nobody"]'
HEALTHCHECK 'printf "version\r\nquit\r\n" | nc -N 127.0.0.1 11211 | grep -q VERSION'
