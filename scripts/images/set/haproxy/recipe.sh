# A proxy before web servers, with a page of its own.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates curl'
RUN 'apt-get install -y haproxy
echo "frontend page
    mode http
    timeout client 5s
    bind :8404
    http-request return status 200" >/etc/haproxy/page.cfg'
EXPOSE 8404
CMD '["haproxy","-f","/etc/haproxy/page.cfg","-db"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1:8404/'
