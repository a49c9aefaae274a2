# `make` says what can be done. Every target that needs Python makes .venv first, from the lock.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV   := .venv
PYTHON := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

# What is linted: those that exist.
CODE := $(wildcard app kubelet_api certs devcluster bench tests)

# How the tests are run. Tests of one xdist group share a worker; tests that inject faults run after the others, and each
# of their workers has clusters of its own: mostly they wait. They run also when others failed, so that one run tells of
# all. Of pytest's codes 2 is an interruption, 5 that nothing was selected, as with PYTEST_ARGS=tests/app.
PYTEST        := $(PYTHON) -m pytest
PYTEST_ARGS   ?=
TEST_WORKERS  ?= 4
TEST_FAST     := $(PYTEST) -m "not cluster and not faults" -n 2
TEST_PARALLEL := $(PYTEST) -m "not faults" -n $(TEST_WORKERS) --dist loadgroup
TEST_FAULTS   := $(PYTEST) -m "faults" -n 2 --dist loadgroup

# Before the tests, where one can see it: the first build takes longer than any test may. Who cannot have clusters is
# told so by the tests.
PREPARE := if [ "$$(uname)" = Linux ] && [ "$$(id -u)" = 0 ]; then $(PYTHON) -m devcluster prepare; fi

# Clusters that a user already has: make demo LOCAL=kubeconfig REMOTE=kubeconfig
LOCAL  ?=
REMOTE ?=
DEMO_ARGS := $(if $(LOCAL),--local "$(LOCAL)") $(if $(REMOTE),--remote "$(REMOTE)")

.PHONY: help
help: ## Say what each target does
	@awk 'BEGIN { FS = ":.*## " } /^[a-z][a-z-]*:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: $(STAMP) ## Install Farlet and its tools into .venv, from the lock (the others do this by themselves)

.PHONY: lint
lint: $(STAMP) ## Check style, format, types and the imports between packages
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m ruff format --quiet --check . || { echo "make fmt formats the files" >&2; exit 1; }
	@$(PYTHON) -m mypy --strict --no-error-summary $(CODE)
	@$(VENV)/bin/lint-imports --no-logo >$(VENV)/lint-imports.log 2>&1 || { cat $(VENV)/lint-imports.log >&2; exit 1; }
	@echo "lint: fine"

.PHONY: test
test: lint ## Lint, then all tests; starts real clusters (root, Linux)
	@$(PREPARE)
	@$(TEST_PARALLEL) $(PYTEST_ARGS); first=$$?; test $$first -ne 2 || exit 2; \
	$(TEST_FAULTS) $(PYTEST_ARGS); second=$$?; \
	test $$first -eq 0 -o $$first -eq 5 || exit $$first; test $$second -eq 0 -o $$second -eq 5 || exit $$second

.PHONY: test-fast
test-fast: $(STAMP) ## The tests that need no cluster, about a minute
	@$(TEST_FAST) $(PYTEST_ARGS)

.PHONY: soak
soak: $(STAMP) ## 10,000 short streams through the kubelet API: nothing stays behind (minutes)
	@$(PREPARE)
	@FARLET_TEST_SESSIONS=10000 $(PYTEST) tests/cluster/test_streams.py -k short_sessions --timeout 3600 -s $(PYTEST_ARGS)

.PHONY: demo
demo: $(STAMP) ## The tour on two real clusters, which stay up; LOCAL=kubeconfig REMOTE=kubeconfig to use yours
	@$(PYTHON) -m devcluster demo $(DEMO_ARGS)

.PHONY: demo-down
demo-down: $(STAMP) ## Stop the clusters of the demo and remove what they left
	@$(PYTHON) -m devcluster demo-down $(DEMO_ARGS)

.PHONY: bench
bench: $(STAMP) ## The benchmarks: a table of ratios
	@$(PYTHON) -m bench

.PHONY: fmt
fmt: $(STAMP) ## Format the code and fix what can be fixed by itself
	@$(PYTHON) -m ruff check --quiet --fix-only .
	@$(PYTHON) -m ruff format --quiet .

# Universal: one lock for every supported Python and platform. No index is named in it, so it installs from
# whichever registry pip is set up for. The dev lock holds the runtime versions too: one file to install.
LOCK_WITH = $(VENV)-lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet $(if $(UPGRADE),--upgrade)
.PHONY: lock
lock: $(STAMP) ## Compute the locks anew after a change of pyproject.toml; UPGRADE=1 takes newer versions
	@test -x $(VENV)-lock/bin/uv || { $(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python -m pip install --quiet uv; }
	@$(LOCK_WITH) pyproject.toml --output-file requirements.lock
	@$(LOCK_WITH) --constraint requirements.lock --group dev pyproject.toml --output-file requirements-dev.lock

.PHONY: clean
clean: ## Remove .venv, caches and build output (clusters: make demo-down)
	@rm -rf $(VENV) $(VENV)-lock dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough, one with ensurepip before one without (Debian packs that apart). Each
# candidate is run, not just looked up: a version manager's shim may be on the PATH and not work.
# BASE_PYTHON=... chooses another.
BASE_PYTHON ?=
$(VENV)/bin/python:
	@new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	has_pip() { "$$1" -c 'import ensurepip, venv' 2>/dev/null; }; \
	base=; without_pip=; \
	for candidate in $(or $(BASE_PYTHON),python3 python3.13 python3.12 python3.11 python3.14 /usr/bin/python3); do \
		new_enough "$$candidate" || continue; \
		if has_pip "$$candidate"; then base=$$candidate; break; fi; \
		without_pip=$${without_pip:-$$candidate}; \
	done; \
	if [ -z "$$base$$without_pip" ]; then \
		echo "Farlet needs Python 3.11 or newer; found none (python3 is: $$(python3 --version 2>&1 | head -1))." >&2; \
		exit 1; \
	fi; \
	if [ -z "$$base" ]; then \
		base=$$without_pip; \
		package=$$("$$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
			echo "$$base cannot make virtual environments: install the package $$package (apt-get install $$package)." >&2; \
			exit 1; \
		fi; \
		echo "Installing the Debian package $$package"; \
		install_package() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$$package" >/dev/null; }; \
		install_package 2>/dev/null || { apt-get update -qq && install_package; }; \
	fi; \
	echo "Making $(VENV) with $$("$$base" --version)"; \
	rm -rf $(VENV) && "$$base" -m venv $(VENV)

# The .venv is kept when the lock changes; pip then moves only what differs.
$(STAMP): requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing $$(grep -c '==' requirements-dev.lock) locked packages into $(VENV) (a minute or so the first time)"; \
	start=$$SECONDS; pip="$(PYTHON) -m pip --disable-pip-version-check --quiet install --progress-bar off"; \
	$$pip --require-hashes --requirement requirements-dev.lock && \
	$$pip --no-deps --no-build-isolation --editable . && \
	touch $@ && echo "Installed in $$((SECONDS - start)) s"
