# A web server with a page.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates curl gettext-base tzdata'
RUN 'apt-get install -y nginx-light
ln -sf /dev/stdout /var/log/nginx/access.log
ln -sf /dev/stderr /var/log/nginx/error.log'
# Debian's default page goes, and a directory begins anew: what a lower layer has and an upper one
# hides, as whiteouts and as an opaque directory.
RUN 'rm /etc/nginx/sites-enabled/default
rm -r /var/www /etc/nginx/snippets
mkdir /etc/nginx/snippets'
COPY default.conf /etc/nginx/conf.d/default.conf
COPY index.html /usr/share/nginx/html/index.html
COPY docker-entrypoint.sh /docker-entrypoint.sh 755
ENTRYPOINT '["/docker-entrypoint.sh"]'
EXPOSE 80
STOPSIGNAL SIGQUIT
CMD '["nginx","-g","daemon off;"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1/'
