# A web framework with its development server.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates netbase tzdata curl'
RUN 'apt-get install -y python3'
RUN 'apt-get install -y python3-django'
RUN 'mkdir /app; cd /app; django-admin startproject site_ .; python3 manage.py migrate'
WORKDIR /app
EXPOSE 8002
CMD '["python3","manage.py","runserver","--noreload","127.0.0.1:8002"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1:8002/'
