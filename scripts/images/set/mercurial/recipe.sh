# An application in Python.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates python3'
RUN 'apt-get install -y mercurial'
RUN 'hg init /repo; cd /repo; cp /etc/*.conf .; hg add -q; hg commit -u nobody -m all'
WORKDIR /repo
CMD '["hg","log","-p"]'
