# Every target sets up what it needs in .venv: a machine with Python 3.11 or later and make is
# enough. Another interpreter: make PYTHON=python3.13 VENV=.venv313 test

PYTHON ?= python3
VENV ?= .venv
EXTRAS := pandas,torch,sql,gym,minari,datasets,ray,metrics,tensorboard,openai
TORCH := torch==2.13.0
WORKERS ?= 2

BIN := $(VENV)/bin
RUN := $(BIN)/python
PIP := $(RUN) -m pip --disable-pip-version-check install -qq
PYTEST := RECOLLECT_NO_SKIPS=1 $(RUN) -m pytest --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint types bench docs soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.core ## a tiny policy learns, its process is killed, nothing is lost; installs the core only
	@$(BIN)/recollect demo

test: lint types ## everything that `check` does, and every test but the soak tests; a skipped test fails it
	$(PYTEST) -n $(WORKERS) -m "not soak and not alone"
	$(call pytest_marked,alone)

check: lint types ## linter, formatter, strict types, and the examples of README and docs
	$(PYTEST) tests/test_docs.py

lint: $(VENV)/.dev
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

types: $(VENV)/.dev
	$(RUN) -m mypy

bench: $(VENV)/.dev ## measure beside the peers and write docs/benchmarks.md; peers go to bench/.envs
	$(RUN) bench/run.py --markdown docs/benchmarks.md

docs: $(VENV)/.dev ## build the documentation into site/; a warning is an error
	$(RUN) -m sphinx --quiet --fail-on-warning --keep-going --fresh-env -d build/doctrees docs site
	@echo "docs: open site/index.html"

soak: $(VENV)/.dev ## the tests that run for minutes: crash loops, long churn
	$(PYTEST) -n $(WORKERS) -m soak

clean: ## remove .venv, caches and what builds left; bench/.envs stays, it takes long to make
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name .git -o -name .envs \) -prune -o -name __pycache__ -prune -exec rm -rf {} +

# Runs the tests that carry a marker, one at a time. Until the first one exists it says so; after
# that, finding none is an error, as pytest has it.
define pytest_marked
@if grep -rqE --include='test_*.py' '\bmark\.$(1)\b' tests; then \
	echo '$(PYTEST) -m $(1)'; \
	$(PYTEST) -m $(1); \
else \
	echo "0 tests are marked '$(1)', so none ran"; \
fi
endef

# A stamp lives in the environment that it describes, so removing .venv removes both.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Recollect needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; say make PYTHON=python3.12")'
	@echo "setup: $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.core: pyproject.toml | $(VENV)/.python
	@echo "setup: recollect and its core dependencies"
	@$(PIP) --editable .
	@touch $@

# torch comes first and pinned, so that nothing after it can choose another build.
$(VENV)/.dev: pyproject.toml | $(VENV)/.python
	@echo "setup: $(TORCH)"
	@$(PIP) $(TORCH)
	@echo "setup: recollect[$(EXTRAS)] and the tools of the group 'dev'"
	@$(PIP) --editable ".[$(EXTRAS)]" --group dev
	@touch $(VENV)/.core $@
