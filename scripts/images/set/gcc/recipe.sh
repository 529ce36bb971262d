# A compiler that compiles something.
# shellcheck shell=bash
FROM_DEBIAN ${FULL:+curl scm dev}
RUN 'apt-get install -y ca-certificates make patch'
RUN 'apt-get install -y gcc libc6-dev'
RUN 'echo "#include <stdio.h>
int main(void) { return puts(__VERSION__) < 0; }" >/hello.c'
CMD '["sh","-c","gcc -O2 -o /tmp/hello /hello.c && /tmp/hello"]'
