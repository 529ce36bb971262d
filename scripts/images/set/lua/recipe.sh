# A small language.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y lua5.4 lua-socket lua-cjson'
CMD '["lua5.4","-e","print(require(\"cjson\").encode({now = require(\"socket\").gettime()}))"]'
