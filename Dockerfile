# conv-advisor for a GPU host, or without CUDA for a laptop. Nothing of CUDA is in the base image: the libraries come as
# pinned wheels and the driver from the host, so that the NVIDIA container toolkit is all the host needs.
#
#   docker build -t conv-advisor .                                    the GPU image
#   docker build -t conv-advisor:cpu --build-arg PACKAGES=base .      without CUDA

FROM python:3.12-slim AS build
ARG PACKAGES=cuda
WORKDIR /build
COPY constraints/ constraints/
RUN python -m venv /opt/conv-advisor \
    && /opt/conv-advisor/bin/pip install --no-cache-dir --require-hashes --no-deps -r constraints/base.txt \
    && /opt/conv-advisor/bin/pip install --no-cache-dir --require-hashes --no-deps -r constraints/${PACKAGES}.txt
COPY pyproject.toml README.md LICENSE ./
COPY data/ data/
COPY kernels/ kernels/
COPY models/ models/
COPY app/ app/
RUN /opt/conv-advisor/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/conv-advisor/bin/pip uninstall --yes --quiet hatchling editables pip

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/conv-advisor conv-advisor
COPY --from=build /opt/conv-advisor /opt/conv-advisor
ENV PATH=/opt/conv-advisor/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CONV_ADVISOR_HOME=/var/lib/conv-advisor \
    NUMBA_CACHE_DIR=/var/lib/conv-advisor/numba \
    CUPY_CACHE_DIR=/var/lib/conv-advisor/cupy \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER conv-advisor
WORKDIR /var/lib/conv-advisor
VOLUME /var/lib/conv-advisor
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# Beyond loopback, which a container always is, the service needs tokens: CONV_ADVISOR_TOKENS_FILE or CONV_ADVISOR_TOKENS.
CMD ["conv-advisor", "serve", "--host", "0.0.0.0", "--port", "8000"]
