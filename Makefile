# Needs make, Python 3.11 or newer and Java 17 or newer; everything else goes into .venv.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo check test test-of test-slow test-matrix test-airflow test-browser test-wheel lint docs audit soak mutations load scale bench bench-growth bench-start lock dist clean java

# Every program starts several Python processes. None of them is to compile this project again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
INSTALLED := .venv/.installed
AIRFLOW := .venv-airflow
SERVERLESS := $(wildcard tests/test_*.py) $(addprefix tests/,model options checkpoint monitoring tasks \
	pipeline/test_config.py cli/test_command_line.py security/test_untrusted.py)

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: $(INSTALLED) ## a MongoDB under load into Delta tables, killed and restarted, in about a minute
	@$(BIN)/mongodb-cdc demo

check: lint ## lint, types and the tests that need no server: a minute and a half
	@$(BIN)/pytest -n 2 $(SERVERLESS)

test: $(INSTALLED) ## every test but the slow ones and the soak, against a real MongoDB and a real Spark
	@$(BIN)/pytest

test-of: $(INSTALLED) ## the tests of one subject, a folder or file below tests: SUBJECT=mongo/plan
	@$(BIN)/pytest -n 0 tests/$(SUBJECT)

test-slow: $(INSTALLED) ## the tests of half a minute and more each; a third of them: SLOW_PART=1/3
	@$(BIN)/pytest -m slow -n 3

test-matrix: $(INSTALLED) ## the tests of the server against MongoDB 4.2 to 6.0: VERSIONS="5.0.32 6.0.27"
	@$(BIN)/python -m tests.matrix $(VERSIONS)

test-airflow: $(INSTALLED) $(AIRFLOW)/.installed ## the DAGs in a real Airflow, in an environment of its own
	@$(BIN)/pytest -m airflow -n 0

test-browser: $(INSTALLED) ## the page of `status --html` in Chromium, which has to be there
	@$(BIN)/pytest -m browser -n 0

test-wheel: $(INSTALLED) ## the wheel in an empty environment, with its demo: PYTHONS="python3.12 python3.13"
	@$(BIN)/pytest -m wheel -n 0

lint: $(INSTALLED) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(INSTALLED) ## the documentation site, into build/site; fails on a link that leads nowhere
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@! grep -rlE '(src|href)="?https?:[^" >]*\.(js|css|woff2?|png|svg)' build/site --include='*.html'

audit: $(INSTALLED) ## known vulnerabilities and licences of all that it stands on
	@$(BIN)/python -m tests.audit

soak: $(INSTALLED) ## random runs: SOAK_SECONDS=600 SOAK_SEED=7 make soak
	@$(BIN)/pytest -m soak -n 0 --timeout 0 -s

mutations: $(INSTALLED) ## deliberate defects, each found or not, into build/mutations.json: NAMES="slice txn"
	@$(BIN)/python -m tests.end_to_end.mutations $(NAMES)

load: $(INSTALLED) ## a steady load, into build/load.json: LOAD_SECONDS=1800 LOAD_RATE=5000 make load
	@$(BIN)/pytest -m soak -n 0 --timeout 0 -s tests/end_to_end/test_load.py

scale: $(INSTALLED) ## a large collection and a long log: DOCUMENTS=100000000 COMMITS=10000 make scale
	@$(BIN)/pytest -m soak -n 0 --timeout 0 -s tests/end_to_end/test_scale.py

bench: $(INSTALLED) ## figures beside mongo-spark and the limits, into build/bench.json: 30 minutes
	@$(BIN)/python -m tests.bench $(BENCH)
	@$(BIN)/python -m tests.bench.encoders
	@$(BIN)/python -m tests.bench --only live --name bench-live --changes 10000 --documents 10000

bench-growth: $(INSTALLED) ## the same with up to ten million documents, 432 splits, 1,000 collections
	@$(BIN)/python -m tests.bench --only growth --name bench-growth

bench-start: $(INSTALLED) ## CPU seconds from `replicate` to its first row, by phase and process: a minute
	@$(BIN)/python -m tests.bench.start

lock: $(INSTALLED) ## renew requirements.lock from pyproject.toml
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --extra demo --extra dev --extra bench --extra docs --extra prometheus --quiet --upgrade \
		--universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements.lock
	@$(BIN)/uv pip compile tests/airflow/requirements.in --quiet --upgrade \
		--universal --python-version 3.11 --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file tests/airflow/requirements.lock

dist: $(INSTALLED) ## wheel and sdist, into dist
	@rm -rf dist && mkdir dist
	@$(BIN)/pip install --quiet --disable-pip-version-check build
	@$(BIN)/python -m build . > dist/log 2>&1 || { cat dist/log >&2; exit 1; }
	@rm dist/log && ls dist/*

clean: ## removes .venv and everything that was built or cached
	@rm -rf .venv $(AIRFLOW) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Nothing is downloaded before Java is known to be there.
java:
	@.ci/java-check

# The stamp is written last, so a .venv without one was left half made. A .venv whose Python is
# gone, or that was moved here with its folder, is of no use either. Such a one is made anew.
SOUND := $(shell [ -f $(INSTALLED) ] && $(BIN)/python -c '' 2>/dev/null \
	&& grep -q '$(CURDIR)/$(BIN)/' $(BIN)/pip && echo yes)
ifneq ($(SOUND),yes)
.PHONY: $(INSTALLED)
endif

$(INSTALLED): pyproject.toml requirements.lock | java
	@[ "$(SOUND)" = yes ] || { python=$$(.ci/newest-python) && rm -rf .venv && "$$python" -m venv .venv; }
	@echo "installing into .venv: $$($(BIN)/python --version), $$(grep -c == requirements.lock) packages" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@$(BIN)/mongodb-cdc prepare
	@touch $@

# Made anew whenever its list changes.
$(AIRFLOW)/.installed: tests/airflow/requirements.lock | $(INSTALLED)
	@rm -rf $(AIRFLOW) && $(BIN)/python -m venv $(AIRFLOW)
	@echo "installing into $(AIRFLOW): $$(grep -c == $<) packages" >&2
	@$(AIRFLOW)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
