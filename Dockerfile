# conv-advisor on Debian's Python and nothing else: no shell, no package manager, no compiler, no pip. Nothing of CUDA's
# driver is inside: the libraries come as pinned wheels and the driver from the host, so that the NVIDIA container toolkit
# is all that a GPU host needs.
#
#   docker build --target gpu -t conv-advisor .
#   docker build --target cpu -t conv-advisor:cpu .
#
# BASE only builds: the images start from nothing, with packages of the same Debian. A release names it by digest
# (--build-arg BASE=debian:12-slim@sha256:...); where there is no registry, deploy/image/build.py makes one with mmdebstrap.
# Behind a proxy that signs for others, give its certificates: --secret id=ca_bundle,src=/etc/ssl/certs/ca-certificates.crt

ARG BASE=debian:12-slim

FROM ${BASE} AS debian
ENV DEBIAN_FRONTEND=noninteractive
COPY deploy/image/debian.sh deploy/image/packages.txt deploy/image/prune.py deploy/image/unused-debian.txt /image/
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends binutils python3 python3-venv > /dev/null 2>&1 \
    && sh /image/debian.sh /image/packages.txt /root-fs \
    && python3 /image/prune.py /image/unused-debian.txt /root-fs \
    && python3 -m compileall -q -s /root-fs /root-fs/usr/lib/python3*

FROM debian AS packages
WORKDIR /build
COPY constraints/cluster.txt constraints/
COPY deploy/image/added.sh /image/
RUN --mount=type=secret,id=ca_bundle --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
    && python3 -m venv /opt/conv-advisor \
    && /opt/conv-advisor/bin/pip install --quiet --require-hashes --no-deps -r constraints/cluster.txt

# What is installed on top goes into a layer of its own: the files that were not there before.
FROM packages AS cuda
COPY constraints/cuda.txt constraints/
COPY deploy/image/strip.sh deploy/image/unused-cuda.txt /image/
RUN --mount=type=secret,id=ca_bundle --mount=type=cache,target=/root/.cache/pip \
    if [ -s /run/secrets/ca_bundle ]; then export PIP_CERT=/run/secrets/ca_bundle; fi \
    && sh /image/added.sh /layer \
       /opt/conv-advisor/bin/pip install --quiet --require-hashes --no-deps -r constraints/cuda.txt \
    && python3 /image/prune.py /image/unused-cuda.txt /layer/opt/conv-advisor/lib/python3*/site-packages \
    && sh /image/strip.sh /layer

FROM packages AS app
COPY pyproject.toml README.md LICENSE ./
COPY data/ data/
COPY kernels/ kernels/
COPY models/ models/
COPY app/ app/
COPY src/ src/
RUN sh /image/added.sh /layer /opt/conv-advisor/bin/pip install --quiet --no-deps --no-build-isolation .

FROM packages AS python
COPY deploy/image/strip.sh deploy/image/unused-packages.txt deploy/image/unused-python.txt /image/
RUN /opt/conv-advisor/bin/pip uninstall --yes --quiet -r /image/unused-packages.txt \
    && python3 /image/prune.py /image/unused-python.txt /opt/conv-advisor \
    && sh /image/strip.sh /opt/conv-advisor \
    && /opt/conv-advisor/bin/pip uninstall --yes --quiet pip

FROM scratch AS runtime
COPY --from=debian /root-fs /
COPY --from=python /opt/conv-advisor /opt/conv-advisor
ENV PATH=/opt/conv-advisor/bin:/usr/bin \
    PYTHONUTF8=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/conv-advisor \
    NUMBA_CACHE_DIR=/var/lib/conv-advisor/numba \
    CUPY_CACHE_DIR=/var/lib/conv-advisor/cupy \
    CONV_ADVISOR_HOME=/var/lib/conv-advisor \
    CONV_ADVISOR_HOST=0.0.0.0 \
    CONV_ADVISOR_PORT=8000
USER 10001:10001
WORKDIR /var/lib/conv-advisor
VOLUME /var/lib/conv-advisor
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['CONV_ADVISOR_PORT'] + '/readyz', timeout=2)"]
# As process 1 it takes SIGTERM itself and collects its worker; it listens beyond its own container with tokens only.
CMD ["conv-advisor", "serve"]

FROM runtime AS cpu
COPY --from=app /layer /
ENV CONV_ADVISOR_DEVICE=cpu

FROM runtime AS gpu
COPY --from=cuda /layer /
COPY --from=app /layer /
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
