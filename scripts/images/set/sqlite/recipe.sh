# A database in a file.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y sqlite3'
CMD '["sqlite3",":memory:","create table t (a, b); insert into t values (1, 2); select sum(a), json_array(1, 2) from t"]'
