# Everything runs in .venv, made here; PYTHON names the interpreter that makes it (3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# A process more than cores (tests/conftest.py), as tests of services wait; each holds a PyTorch of its
# own. Each takes neighbouring tests, which share expensive fixtures, and at its end another's last ones,
# so that no long file is left to one process.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

.PHONY: help setup demo test test-fast test-fleet lab bench-fleet lint format docs clean
.DEFAULT_GOAL := help

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# The two distributions, editable, with the pinned versions.
$(VENV)/.installed: constraints.txt pyproject.toml engine/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e ./engine -e .
	touch $@

$(VENV)/.developing: $(VENV)/.installed requirements-dev.txt
	$(PIP) install -q -c constraints.txt -r requirements-dev.txt
	touch $@

setup: $(VENV)/.developing  ## Install both packages and the tools to work on them into .venv.

demo: $(VENV)/.installed  ## Deploy the bundled model to this machine and compare its modes.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m ddtreectl demo

test: setup  ## Run the test suite, with coverage; hosts apart: test-fleet.
	$(BIN)/python -m pytest -m "not fleet" $(PARALLEL) --cov --cov-report=term:skip-covered

test-fast: setup  ## Run the tests that take seconds.
	$(BIN)/python -m pytest -m "not slow and not e2e and not fleet" $(PARALLEL)

# FULL=1 hurts every step of a swap by every fault; without it, each at least once.
test-fleet: setup  ## Run the tests on real systemd hosts over real SSH (root).
	FULL=$(FULL) $(BIN)/python -m pytest tests/fleet --numprocesses 3 --dist loadfile --no-loadscope-reorder

lab: setup  ## Boot three such hosts to try ddtreectl on, and say how to reach them (root).
	$(BIN)/python -m tests.fleet.lab up

bench-fleet: setup  ## Compare ddtreectl with ansible-core and pyinfra on 24 such hosts (root, a quarter of an hour).
	$(BIN)/python -m bench.fleet

lint: setup  ## Check format, style, types and the import layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Format and fix what ruff can fix.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## Write the command reference from the code.
	$(BIN)/python -m tools.cli_reference

clean:  ## Remove the environment and caches.
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
