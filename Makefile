# make demo    diagnose a shipped example and print the report
# make test    the whole test suite
# make check   what CI runs: linters, types, layers, tests, the gate over our own examples
# Each does all its own set-up: a virtual environment in .venv, with the versions of constraints.txt.

VENV ?= .venv
# The newest Python that torch has wheels for is not always the best choice: 3.11 is what is tested most.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 8 ] && echo 8 || echo $$n)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check lint types layers gate baselines format schema clean

demo: $(VENV)/.runtime
	@$(BIN)/bottleneck diagnose --out reports/demo-$$(date +%Y%m%d-%H%M%S) examples/input_bound.py

test: $(VENV)/.development
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term:skip-covered $(ARGS)

check: lint types layers test gate

lint: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.development
	$(BIN)/mypy

layers: $(VENV)/.development
	$(BIN)/lint-imports --no-logo

# Counters alone: they are exact on any machine, while the step times of a shared one are not.
gate: $(VENV)/.development
	$(BIN)/python tests/benchmarks/gate_examples.py

baselines: $(VENV)/.development
	$(BIN)/python tests/benchmarks/gate_examples.py --update

format: $(VENV)/.development
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schema: $(VENV)/.runtime
	$(BIN)/python -m torch_bottleneck.model.schema
	$(BIN)/python -m torch_bottleneck.model.gate

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.13 with venv found. Set PYTHON=/path/to/python." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing bottleneck into $(VENV) ..."
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.development: $(VENV)/.runtime
	@echo "Installing what the tests and linters need ..."
	$(PIP) -e '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
