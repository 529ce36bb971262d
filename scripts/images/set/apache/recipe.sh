# A web server.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates curl'
RUN 'apt-get install -y apache2'
EXPOSE 80
CMD '["apachectl","-D","FOREGROUND"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1/'
