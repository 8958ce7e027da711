# Everything a developer types. `make train` and `make test` set up what they need.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
BENCHMARK_STAMP := $(VENV)/.installed-benchmark
TORCH_PIN := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP_INSTALL := $(PY) -m pip install --disable-pip-version-check -c constraints.txt
# What needs minutes, hardware or a server stays out of the quick run.
QUICK := not slow and not gpu and not gazebo and not redis and not ray
# Set PYTHON to use another interpreter; empty means python3.11, else python3.
PYTHON ?=
# Folder for Gazebo; empty means .gazebo here.
GAZEBO ?=
ARGS ?=

.PHONY: help venv train test lint check format benchmark gazebo clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):[^#]*## /\1\t/' \
		| while IFS=$$'\t' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  ARGS="..." is passed on, e.g. make train ARGS="task=hopper seed=1", make test ARGS="-k clocks"'

venv: $(STAMP) ## create .venv and install the package, editable, at the tested versions

# The stamp is removed first and written last: a set-up that failed is done again, from scratch.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -e $(STAMP) ] || [ ! -x $(PY) ]; then \
		found=""; \
		for candidate in $(or $(PYTHON),python3.11 python3); do \
			if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
			then found="$$candidate"; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "error: rl_twoclocks needs Python 3.11 or newer." >&2; \
			echo "  tried: $(or $(PYTHON),python3.11 python3)" >&2; \
			echo "  python3 here is: $$(python3 --version 2>&1 || true)" >&2; \
			echo "  Install one, or name it: make venv PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "creating $(VENV) with $$("$$found" --version)"; \
		rm -f $(STAMP); \
		"$$found" -m venv --clear $(VENV); \
	fi
	@rm -f $(STAMP)
	$(PIP_INSTALL) $(TORCH_PIN)
	$(PIP_INSTALL) -e '.[dev,atari,envpool,export,redis,sweep,minigrid,box2d,workspace]'
	@touch $(STAMP)

$(BENCHMARK_STAMP): $(STAMP)
	$(PIP_INSTALL) -e '.[benchmark]'
	@touch $(BENCHMARK_STAMP)

# Hydra lets the last of two equal overrides win, so ARGS may name the task or the budget again.
train: $(STAMP) ## train HalfCheetah for 200,000 frames; ARGS overrides anything
	$(PY) -m rl_twoclocks.train task=halfcheetah total_frames=200000 $(ARGS)

test: $(STAMP) ## run the quick tests on two processes
	$(PY) -m pytest -m "$(QUICK)" -n 2 $(ARGS)

lint: $(STAMP) ## ruff (rules and format) and mypy; changes nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

check: lint test ## lint and test: what must pass before a change is proposed

format: $(STAMP) ## let ruff format and fix what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

benchmark: $(BENCHMARK_STAMP) ## speed against peers
	$(PY) scripts/benchmark.py $(ARGS)

gazebo: $(STAMP) ## install Gazebo 11 into GAZEBO=folder (default .gazebo), without root
	$(PY) -m rl_twoclocks.worlds.gazebo $(GAZEBO)

clean: ## remove .venv, caches and build products; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -path ./runs -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
