# A store of keys in memory.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'groupadd -r -g 999 redis; useradd -r -g redis -u 999 redis'
RUN 'apt-get install -y redis-server
mkdir -p /data
chown redis:redis /data'
VOLUME /data
WORKDIR /data
COPY docker-entrypoint.sh /usr/local/bin/docker-entrypoint.sh 755
ENTRYPOINT '["docker-entrypoint.sh"]'
EXPOSE 6379
CMD '["redis-server","--protected-mode","no"]'
HEALTHCHECK 'redis-cli ping | grep -q PONG'
