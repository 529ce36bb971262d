# A web framework behind puma.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates netbase curl'
RUN 'apt-get install -y ruby'
RUN 'apt-get install -y ruby-sinatra puma'
RUN 'mkdir /app; echo "require %q(sinatra)
set :environment, :production
get(%q(/)) { %q(well) }" >/app/app.rb'
WORKDIR /app
EXPOSE 8003
CMD '["ruby","app.rb","-p","8003","-s","puma"]'
HEALTHCHECK 'curl -fsS -o /dev/null http://127.0.0.1:8003/'
