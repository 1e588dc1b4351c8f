# Everything runs in an environment of its own, .venv, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help:  ## show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("wager needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

setup: $(READY)  ## make the environment

demo: $(READY)  ## watch policies learn in two simulations
	$(BIN)/wager simulate --env tgd --arms 0.8,0.6,0.4 --length 4 --tokens 20000 --runs 10
	$(BIN)/wager simulate --env costs --verify cpu --tokens 10000 --runs 4

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## lint, then every test
	$(BIN)/python -m pytest --numprocesses 2

bench: $(READY)  ## measure, and write results/
	$(BIN)/python results/run.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
