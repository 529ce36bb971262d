# A web application on the JVM.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm}
RUN 'apt-get install -y ca-certificates netbase tzdata'
ENV JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64
kind=${FULL:+jdk}
RUN "mkdir -p /usr/share/man/man1
apt-get install -y openjdk-17-${kind:-jre}-headless"
WORKDIR /app
COPY App.java /app/App.java
RUN 'cd /app
java -m jdk.compiler/com.sun.tools.javac.Main App.java
rm App.java'
COPY docker-entrypoint.sh /usr/local/bin/docker-entrypoint.sh 755
ENTRYPOINT '["docker-entrypoint.sh"]'
EXPOSE 8080
CMD '["java","-cp","/app","App"]'
HEALTHCHECK 'bash -c "exec 3<>/dev/tcp/127.0.0.1/8080; printf \"GET / HTTP/1.0\r\n\r\n\" >&3; grep -q \"200 OK\" <&3"'
