# A small web server.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates curl'
RUN 'apt-get install -y lighttpd'
EXPOSE 80
CMD '["lighttpd","-D","-f","/etc/lighttpd/lighttpd.conf"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1/'
