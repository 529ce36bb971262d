# A language, with a program that uses what programs use.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates netbase'
RUN 'apt-get install -y ruby'
CMD '["ruby","-rjson","-rset","-rtime","-rnet/http","-ropenssl","-e","puts JSON.dump(now: Time.now.iso8601)"]'
