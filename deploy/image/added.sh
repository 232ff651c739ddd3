#!/bin/sh
# Run a command that installs into /opt/conv-advisor, and move the files that were not there before to a folder.
#   added.sh <folder> <command> ...
set -eu
folder=$1
shift
find /opt/conv-advisor ! -type d | sort > /tmp/before
"$@"
mkdir -p "$folder"
find /opt/conv-advisor ! -type d | sort | comm -13 /tmp/before - > /tmp/added
tar --create --absolute-names --remove-files --files-from /tmp/added | tar --extract --absolute-names --transform "s,^,$folder,"
