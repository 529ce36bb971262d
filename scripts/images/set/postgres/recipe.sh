# A database, initialized in the image: its first start is a start, not an installation.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y tzdata libnss-wrapper xz-utils'
RUN 'mkdir -p /etc/postgresql-common
echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
apt-get install -y postgresql-15'
ENV LANG=C.UTF-8
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/15/bin
ENV PGDATA=/var/lib/postgresql/data
# Small log segments: the first write copies one up.
RUN 'setpriv --reuid=postgres --regid=postgres --clear-groups \
    /usr/lib/postgresql/15/bin/initdb --no-sync --wal-segsize=1 --auth=trust --locale=C.UTF-8 -D /var/lib/postgresql/data
echo "listen_addresses = '"'*'"'" >>/var/lib/postgresql/data/postgresql.conf
echo "host all all all trust" >>/var/lib/postgresql/data/pg_hba.conf'
COPY docker-entrypoint.sh /usr/local/bin/docker-entrypoint.sh 755
ENTRYPOINT '["docker-entrypoint.sh"]'
STOPSIGNAL SIGINT
EXPOSE 5432
CMD '["postgres"]'
HEALTHCHECK 'pg_isready -q -h 127.0.0.1 -U postgres'
