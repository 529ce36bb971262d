# A database, initialized in the image: its first start is a start, not an installation.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y tzdata pwgen'
RUN 'apt-get install -y mariadb-server mariadb-client
install -d -o mysql -g mysql /run/mysqld'
EXPOSE 3306
CMD '["mariadbd","--user=mysql"]'
HEALTHCHECK 'mariadb-admin --user=root ping'
