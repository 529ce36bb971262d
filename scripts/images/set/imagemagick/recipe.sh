# An application that draws.
# shellcheck shell=bash
FROM_DEBIAN
RUN 'apt-get install -y fonts-dejavu-core ghostscript'
RUN 'apt-get install -y imagemagick'
CMD '["convert","-size","320x240","gradient:red-blue","-rotate","7","/tmp/drawn.png"]'
