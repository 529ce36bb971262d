# A language for web pages, with its own server.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl phpize}
RUN 'apt-get install -y ca-certificates curl'
RUN 'apt-get install -y php-cli php-mbstring php-xml php-curl'
RUN 'mkdir /app; echo "<?php echo json_encode([PHP_VERSION]);" >/app/index.php'
WORKDIR /app
EXPOSE 8001
CMD '["php","-S","0.0.0.0:8001","-t","/app"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1:8001/'
