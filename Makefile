# `make serve` and `make test`: both set up .venv first, from pinned and hashed packages.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
# Tests at a time: one more than there are processors, since some wait for a process that they have started.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test test-all test-pytorch lint docs lock images clean

.venv/.base: constraints/serve.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "conv-advisor needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --no-deps -r constraints/serve.txt
	$(PIP) --no-deps --no-build-isolation -e .
	.venv/bin/python -m compileall -q app data kernels models src  # as pip does where it copies
	touch $@

.venv/.dev: .venv/.base constraints/dev.txt
	$(PIP) --require-hashes --no-deps -r constraints/dev.txt
	touch $@

# With GPU=1 what its kernels need is installed too, where there is a GPU, and the worker is the GPU's.
.venv/.cuda: .venv/.base constraints/cuda.txt
	.venv/bin/python -m conv_advisor.app.workers.gpus
	$(PIP) --require-hashes --no-deps -r constraints/cuda.txt
	touch $@

serve: .venv/.base $(if $(GPU),.venv/.cuda)
	.venv/bin/conv-advisor serve --host $(HOST) --port $(PORT) $(if $(GPU),--device cuda:0)

# Bytecode is kept whatever the environment says: half of a start is compiling it again.
serve test test-all test-pytorch: export PYTHONDONTWRITEBYTECODE =

# What every change should pass, in a few minutes, and what it must before it lands.
test: .venv/.dev
	.venv/bin/python -m pytest -n $(JOBS) -m "not slow"

test-all: .venv/.dev
	.venv/bin/python -m pytest -n $(JOBS) --durations 25 --durations-min 5

# The backend of PyTorch, in an environment beside .venv that has all of .venv's packages too. PyTorch's build for the CPU alone
# is on an index of its own, of which pip must know (PIP_EXTRA_INDEX_URL); the usual one brings gigabytes of CUDA.
test-pytorch: .venv-pytorch/.made
	.venv-pytorch/bin/python -m pytest -n $(JOBS) -m "not gpu" tests/pytorch

.venv-pytorch/.made: .venv/.dev constraints/pytorch.txt
	$(PYTHON) -m venv .venv-pytorch
	.venv-pytorch/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints/pytorch.txt
	.venv/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>"$$(.venv-pytorch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dev.pth"
	touch $@

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -W ignore .ci/docs.py

# Resolve again and write the pins; versions and hashes only, no download addresses.
lock: .venv/.base
	.venv/bin/python -m pip install --quiet uv==0.13.8
	sh constraints/lock.sh .venv/bin/uv

# Build both images without an engine, say what they weigh, and run them. As root, with buildah and mmdebstrap.
images: .venv/.dev
	.venv/bin/python -m deploy.image.build cpu gpu --sizes
	IMAGE=localhost/conv-advisor:cpu .venv/bin/python -m pytest tests/deploy/test_image.py
	IMAGE=localhost/conv-advisor:gpu .venv/bin/python -m pytest tests/deploy/test_image.py

clean:
	rm -rf .venv .venv-pytorch
