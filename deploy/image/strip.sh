#!/bin/sh
# Take symbols for debuggers out of the libraries below a folder. NVIDIA's have none, and those that auditwheel has renamed
# (<package>.libs/) are left alone: strip breaks what patchelf has moved about.
#   strip.sh <folder>
set -eu
find "$1" -type f -name '*.so*' ! -path '*.libs/*' ! -path '*/nvidia/*' -exec strip --strip-unneeded {} +
