# The front door. Needs python3 (3.11 or newer) and make; everything else goes into .venv.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
# Of two processors a third worker uses what the others leave while they wait for a portal or a job.
WORKERS ?= 3

# `check --deploy` looks at the settings of production; these values name nothing that exists.
AS_PRODUCTION := DJANGO_SETTINGS_MODULE=config.settings.production \
  MUSTER_SECRET_KEY=only-for-the-check-4fd0b1c97a2e85d3-4fd0b1c97a2e85d3-4fd0b1c9 \
  MUSTER_ALLOWED_HOSTS=muster.example.org \
  MUSTER_AUDIT_KEY=only-for-the-check-too MUSTER_AUDIT_CHECKPOINT_FILE=/nowhere/audit-checkpoints \
  DATABASE_URL=postgres://nobody@127.0.0.1:1/nothing REDIS_URL=redis://127.0.0.1:1/0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, every start compiles everything again, which takes longer than the start itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run check types style contracts django test collected chaos conformance bench docs schema demo lock clean runtime development

help:  ## Say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

run: runtime  ## Run the whole portal here and print its address (PORT=8080, ARGS="--nodes 2 --no-demo")
	@exec $(PY) manage.py up $(ARGS)

check: development  ## Style, types, import contracts, migrations, deployment checks: what CI runs
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,--jobs=2 --output-sync=target) \
	  types style contracts django
	@echo "All checks passed."

# Four that need nothing of each other. The types take longest, so they begin first.
types:
	$(PY) -m mypy
style:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
contracts:
	$(VENV)/bin/lint-imports
django:
	$(PY) manage.py makemigrations --check --dry-run
	env $(AS_PRODUCTION) $(PY) manage.py check --deploy --fail-level WARNING

test: development  ## The whole test suite on three workers (ARGS="tests/scheduler -k gang"; WORKERS=0: in one process)
	@exec $(PY) -m pytest $(if $(filter-out 0,$(WORKERS)),-n $(WORKERS) --dist loadfile --no-loadscope-reorder) $(ARGS)

# What the suite keeps from run to run: its modules compiled, a data folder with all tables, and the tables that each
# migration makes after the other, which takes a minute.
collected: development
	@for first in --collect-only tests/config/database/test_schema.py; do \
	  said="$$($(PY) -m pytest -q $$first 2>&1)" || { tail -n 40 <<<"$$said"; exit 1; }; done

chaos: development  ## Faults for MINUTES=20 beside jobs, on a portal of its own; exit code 1 where a promise breaks
	$(PY) -m tests.chaos.minutes $(or $(MINUTES),20) $(ARGS)

conformance: development  ## The OpenAPI document against a running portal: a generated client, and schemathesis
	MUSTER_CONFORMANCE=1 $(PY) -m pytest tests/e2e/test_clients.py $(ARGS)

bench: development  ## Measure, and write var/bench/latest.json
	@exec $(PY) -m benchmarks.run $(ARGS)

schema: development  ## Run all migrations on a database of its own and write config/database/schema.sql
	@state="$$(mktemp -d)" && chmod 755 "$$state" && { MUSTER_STATE="$$state" $(PY) manage.py write_schema; \
	  code=$$?; rm -rf "$$state"; exit $$code; }

demo: runtime  ## Load demo people, projects and queues where they are missing
	@exec $(PY) manage.py seed_demo

docs: development  ## Write the generated references (API, job request, settings), build the docs into site/, check links
	$(PY) manage.py spectacular --validate --file docs/reference/openapi.yaml
	$(PY) manage.py describe_job_request > docs/reference/job-request.md
	$(PY) manage.py settings_reference
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

lock:  ## Make the lock files again from requirements*.in (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links requirements.in -o requirements.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links -c requirements.txt requirements-tracing.in -o requirements-tracing.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links -c requirements.txt -c requirements-tracing.txt requirements-dev.in \
	  -o requirements-dev.txt
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links -c requirements-dev.txt requirements-bench.in -o requirements-bench.txt

clean:  ## Remove what was built; the state in var/ stays
	rm -rf $(VENV) static-root site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './var/*' -prune -exec rm -rf {} +

runtime:
	@$(PYTHON) -m config.up.bootstrap runtime

development:
	@$(PYTHON) -m config.up.bootstrap development
