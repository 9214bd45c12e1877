# make demo    diagnose a shipped example and print the report
# make test    the whole test suite
# make check   what CI runs: linters, types, layers, tests, the gate over our own examples
# make coverage   the tests, with the lines that they reach
# make fuzz    damaged input: 10,000 cases, other ones each time (FUZZ_CASES; FUZZ_KEEP=FOLDER keeps what fails)
# make oldest  the harness's tests with the oldest supported torch, and with the oldest Python if it is
#              installed, in .venv-oldest (5 GB: the only wheel on PyPI includes CUDA); if that torch cannot be
#              installed, it says so and continues
# Each target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt.

VENV ?= .venv
# The newest Python that torch has wheels for is not always the best choice: 3.11 is tested most.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3.10 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' \
	2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
# Not nproc: it returns OMP_NUM_THREADS if that is set. One more than cores: a quarter of the time the tests wait.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 7 ] && echo 8 || echo $$((n + 1)))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

OLDEST ?= 2.6.0
OLDEST_PYTHON ?= $(shell for p in python3.10 $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python) $(PYTHON); do \
	$$p -c 'import ensurepip, venv' 2>/dev/null && echo $$p && break; done)
OLDEST_BIN := .venv-oldest/bin

.PHONY: demo test coverage check fuzz oldest lint types layers gate baselines format schema clean

demo: $(VENV)/.runtime
	@$(BIN)/bottleneck diagnose --out reports/demo-$$(date +%Y%m%d-%H%M%S) examples/input_bound.py

# A busy machine may upset a test that runs real steps: each has a second try, and the summary lists who needed it.
test: $(VENV)/.development
	$(BIN)/python -m pytest -n $(WORKERS) --reruns 1 $(ARGS)

# Counting lines makes what runs in pytest's own process half as long again.
coverage: $(VENV)/.development
	$(BIN)/python -m pytest -n $(WORKERS) --reruns 1 --cov --cov-report=term:skip-covered $(ARGS)

check: lint types layers test gate

fuzz: $(VENV)/.development
	FUZZ_CASES=$${FUZZ_CASES:-10000} $(BIN)/python -m pytest -q -p no:cacheprovider -n $(WORKERS) tests/fuzz $(ARGS)

# Tests of what depends on private torch API: facts about compilations, FLOPs, steps, stopping. Tests of what
# depends on the Python version: formats written by msgspec, and TOML, which 3.10 cannot read by itself. And
# one compiled script from end to end.
oldest: .venv-oldest/.ready
	@if [ "$$(cat .venv-oldest/.ready)" = none ]; then \
		echo "torch $(OLDEST) cannot be installed here: its tests are skipped."; \
	else \
		$(OLDEST_BIN)/python -V && \
		$(OLDEST_BIN)/python -m pytest -n $(WORKERS) --reruns 2 -q tests/unit/harness tests/contracts/test_schema.py \
			tests/unit/compare/test_baseline_file.py tests/unit/compare/test_history.py \
			tests/unit/compare/test_reports.py tests/unit/compare/test_settings.py && \
		$(OLDEST_BIN)/python -m torch_bottleneck diagnose --quiet --out .venv-oldest/run-$$$$ \
			examples/graph_breaks.py --steps 60; \
	fi

.venv-oldest/.ready: pyproject.toml
	@test -x $(OLDEST_BIN)/python || $(OLDEST_PYTHON) -m venv .venv-oldest
	@echo "Installing torch $(OLDEST) into .venv-oldest ..."
	@if timeout 600 $(OLDEST_BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(OLDEST); then \
		$(OLDEST_BIN)/python -m pip install --quiet --disable-pip-version-check -e . torch==$(OLDEST) \
			pytest pytest-timeout pytest-rerunfailures pytest-xdist hypothesis jsonschema && echo $(OLDEST) > $@; \
	else echo none > $@; fi

lint: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.development
	$(BIN)/mypy

layers: $(VENV)/.development
	$(BIN)/lint-imports --no-logo

# Only counters: they are exact on any machine, while the step times of a shared machine are not.
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
	@test -n "$(PYTHON)" || { echo "No Python 3.10 to 3.14 with venv found. Set PYTHON=/path/to/python." >&2; exit 1; }
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
	rm -rf $(VENV) .venv-oldest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
