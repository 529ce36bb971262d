# An application for the command line, with a repository.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y ca-certificates openssh-client'
RUN 'apt-get install -y git'
RUN 'git init -q /repo; cd /repo; cp /etc/*.conf .; git add .
git -c user.name=n -c user.email=e@example.org commit -q -m all'
WORKDIR /repo
CMD '["git","-c","safe.directory=/repo","log","--stat","-p"]'
