#!/bin/sh
# Write the pinned, hashed package lists from pyproject.toml: base (advice and the service alone), serve (base, convolutions
# on the CPU, training, plans of ONNX models), cluster (serve, PostgreSQL, Dask, traces), cuda (cluster and the CUDA
# libraries), dev (cluster, tests and lint).
set -eu
uv=$1
compile() {
    out=$1
    shift
    "$uv" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
        --no-emit-index-url --no-emit-find-links "$@" --output-file "constraints/$out"
}
compile dev.txt --extra dev
compile base.txt --extra build --constraint constraints/dev.txt
compile serve.txt --extra cpu --extra train --extra onnx --extra build --constraint constraints/dev.txt
compile cluster.txt --extra cpu --extra train --extra cluster --extra onnx --extra build --constraint constraints/dev.txt
compile cuda.txt --extra cpu --extra train --extra cuda --extra cluster --extra onnx --constraint constraints/dev.txt
