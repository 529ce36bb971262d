# A language, with a program that uses what programs use.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y perl libwww-perl libjson-perl'
CMD '["perl","-MJSON","-MLWP::UserAgent","-MPOSIX","-e","print encode_json({now => strftime(\"%F\", gmtime)})"]'
