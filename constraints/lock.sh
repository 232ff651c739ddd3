#!/bin/sh
# Write the pinned, hashed package lists from pyproject.toml: base (advice and the service alone), serve (base, convolutions
# on the CPU, training, plans of ONNX models), cluster (serve, PostgreSQL, Dask, traces), cuda (cluster and the CUDA
# libraries), dev (cluster, tests and lint), and pytorch (beside dev, what the backend's tests import).
set -eu
uv=$1
compile() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
        --no-emit-index-url --no-emit-find-links "$@" --output-file "constraints/$out"
}
compile dev.txt pyproject.toml --extra dev
compile base.txt pyproject.toml --extra build --constraint constraints/dev.txt
compile serve.txt pyproject.toml --extra cpu --extra train --extra onnx --extra build --constraint constraints/dev.txt
compile cluster.txt pyproject.toml --extra cpu --extra train --extra cluster --extra onnx --extra build \
    --constraint constraints/dev.txt
compile cuda.txt pyproject.toml --extra cpu --extra train --extra cuda --extra cluster --extra onnx \
    --constraint constraints/dev.txt

# CuPy is imported without a GPU, and needs two of its libraries for that. PyTorch is the build for the CPU alone, for Python
# 3.11 on x86-64: it is on an index of its own, so its version and hash are written here.
printf '%s\n' cupy-cuda13x nvidia-cublas nvidia-cufft nvidia-ml-py 'mpmath<1.4' networkx sympy |
    compile pytorch.txt - --no-deps --constraint constraints/cuda.txt
cat >>constraints/pytorch.txt <<'END'
torch==2.13.0+cpu \
    --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
END
