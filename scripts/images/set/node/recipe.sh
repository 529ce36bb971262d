# A web application in Node, with Express.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates netbase tzdata'
RUN 'apt-get install -y nodejs'
ENV NODE_ENV=production
RUN 'apt-get install -y node-express'
WORKDIR /app
COPY server.js /app/server.js
COPY docker-entrypoint.sh /usr/local/bin/docker-entrypoint.sh 755
ENTRYPOINT '["docker-entrypoint.sh"]'
EXPOSE 3000
CMD '["server.js"]'
HEALTHCHECK 'node -e "fetch(\"http://127.0.0.1:3000/\").then(r => process.exit(r.ok ? 0 : 1), () => process.exit(1))"'
