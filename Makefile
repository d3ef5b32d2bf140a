# The README's two commands are `make train` and `make test`; each sets up .venv first, once: the first one with what training
# needs, and the second one with what tests need.
PYTHON ?= python3
ARGS ?= env=MineSweeper
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --no-compile -c constraints.txt

.PHONY: setup train test test-all test-nightly lint format docs lock clean
.DEFAULT_GOAL := setup

setup: $(STAMP)_for_system $(STAMP)_for_lint

# A stamp goes first and comes back last, so a failed installation leaves none. Python compiles a module when it first imports it:
# to have pip compile all of them takes as long as the rest of the installation.
$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 14) or sys.exit("enn-ppo needs Python 3.11 to 3.14, and $(PYTHON) is %d.%d: name another one with make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

# The groups of pyproject.toml: test, system, lint, docs, lock. pip knows groups since 25.1, and older Pythons bring an older pip.
$(STAMP)_for_%: $(STAMP)
	@rm -f $@
	$(BIN)/python -m pip install --quiet --no-compile "pip>=25.1"
	$(INSTALL) --group $* -e .
	@touch $@

train: $(STAMP)
	$(BIN)/python -m enn_ppo.train $(ARGS)

lint: $(STAMP)_for_lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Two tests at a time, of which each has a core. Spinning OpenMP threads make small operations 30 times slower as soon as
# another process shares the cores. tests/conftest.py says what belongs to which tier.
PYTEST = OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal $(PYTEST_ARGS)

test: $(STAMP)_for_test
	$(PYTEST)

test-all: test $(STAMP)_for_system
	$(PYTEST) --tier system

test-nightly: $(STAMP)_for_system
	$(PYTEST) --tier nightly

format: $(STAMP)_for_lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site in build/site, of the pages in docs/ and the docstrings. A warning, or a link that leads nowhere, fails.
docs: $(STAMP)_for_docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes constraints.txt. Pins that fit pyproject.toml stay; `make lock ARGS=--upgrade` renews all but torch, which is pinned there.
lock: ARGS =
lock: $(STAMP)_for_lock
	@echo "-e .[worlds]" | $(BIN)/uv pip compile - --group system --group lint --group docs --group lock -o constraints.txt --quiet $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
