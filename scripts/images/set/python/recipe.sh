# A web application in Flask, behind gunicorn.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates netbase tzdata'
ENV LANG=C.UTF-8
RUN 'apt-get install -y python3'
RUN 'apt-get install -y python3-flask gunicorn'
WORKDIR /app
COPY app.py /app/app.py
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
CMD '["gunicorn","--bind","0.0.0.0:8000","--worker-tmp-dir","/dev/shm","app:app"]'
HEALTHCHECK 'python3 -c "import urllib.request as r; r.urlopen(\"http://127.0.0.1:8000/\")"'
