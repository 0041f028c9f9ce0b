# `make demo` installs into .venv and trains the demo's models; `make test` installs and runs lint, type checks and tests.
# PYTHON=python3.12 chooses another Python; ARGS go to the demo (ARGS="--steps 50") or to pytest (ARGS="-k guards").

PYTHON ?= python3
# The release that CI runs the tests with; fxjit works with torch 2.11 to 2.15 (noxfile.py).
TORCH ?= torch==2.13.*
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Two threads in each process: the machines this runs on are small, and timings mean something only if all use as many.
export OMP_NUM_THREADS ?= 2
# Tests start some hundred processes: each would translate every module again where Python is told to keep nothing.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint build clean gpu-wheels
.DEFAULT_GOAL := help

help:
	@sed -n '1,3p' Makefile; echo "Targets: demo test lint build clean gpu-wheels"

demo: build
	$(BIN)/python -m fxjit demo --plot demo.png $(ARGS)

LINT := $(BIN)/ruff check src tests benchmarks tools && $(BIN)/mypy

# Lint and types beside the tests, which run whatever those say; the tests' summary comes last where they take longer.
test: build
	@{ $(LINT); } & lint=$$!; status=0; \
	$(BIN)/python -m pytest -q $(ARGS) || status=1; \
	wait $$lint || status=1; \
	exit $$status

lint: build
	$(LINT)

# What a GPU machine without a network may lack beside torch and Triton, for the models of benchmarks.gpu:
# `pip install --no-index --no-deps --target DIR gpu-wheels/*.whl` there. The hub's second version needs an httpx2.
GPU_WHEELS := transformers timm tokenizers safetensors 'huggingface-hub<2' regex
gpu-wheels:
	mkdir -p $@
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		-d $@ $(GPU_WHEELS)
	ls $@

build: $(VENV)/installed

# Installed again when what is built changes; Python files are used in place.
$(VENV)/installed: pyproject.toml setup.py $(shell find src/fxjit -name '*.c' -o -name '*.h')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '$(TORCH)' -e '.[test,demo,bench]'
	touch $@

clean:
	rm -rf build dist gpu-wheels src/fxjit.egg-info .pytest_cache .mypy_cache .ruff_cache $(VENV)/installed
	find src -name '*.so' -delete
