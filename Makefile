# Two commands on a fresh machine (Linux x86-64, Python 3.11 or 3.12, make, bash): make boot, make test.
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.PHONY: help boot test image-test gpu-test image-size chaos bench check format lock docs clean

# Here and in CI Python may be told to write no bytecode: the stack then compiles itself
# anew at every boot, which takes 12 seconds longer.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
SOURCES := $(wildcard app tests scripts bench examples docker)
SHELL_SCRIPTS := .ci/run $(wildcard scripts/*.sh docker/*.sh)
DOCKERFILES := $(wildcard Dockerfile.*)

ENGINE := scripts/engine.sh run
IMAGES := h100 v100
TAGS := $(IMAGES:%=bootguard:%)

help: ## say what there is (the default)
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 19
	@echo 'PYTHON=python3.12 names the interpreter; BOOT_* variables reach the boot; ARGS="-k name" reaches pytest.'

boot: export BOOT_HARDWARE ?= cpu
boot: export BOOT_REPORT_DIR ?= reports
boot: ## install the locked H100 set if needed, then boot (a rehearsal unless BOOT_HARDWARE says else)
	@scripts/env.sh run
	@$(BIN)/python -m app.boot

test: ## install the dev set too if needed, then run the tests
	@scripts/env.sh dev
	@$(BIN)/python -m pytest $(ARGS)

image-test: ## build both images on a Docker engine and run them (IMAGES=h100 for one; starts an engine where root can)
	@scripts/env.sh dev
	@$(ENGINE) $(BIN)/python -m pytest tests/image $(IMAGES:%=--image %) $(ARGS)

gpu-test: ## prove this machine's V100 or H100 with the locked H100 set (BOOT_BASE_MODEL_ID adds a model that lies here)
	@scripts/env.sh dev
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

image-size: ## measure images that are there, with their largest parts (TAGS=...)
	@scripts/env.sh dev
	@for tag in $(TAGS); do $(BIN)/python scripts/image_size.py "$$tag"; done

chaos: ## kill, hang, crash and flood boots at every stage: hundreds of runs (ARGS="--list" names them)
	@scripts/env.sh dev
	@$(BIN)/python -m tests.chaos $(ARGS)

bench: ## measure the whole boot against the bare library calls, and boots that fail at once
	@scripts/env.sh dev
	@$(BIN)/python -P -m bench.startup $(ARGS)
	@$(BIN)/python -P -m bench.preflight

check: ## lint, format, types, shell scripts, Dockerfiles, workflows
	@scripts/env.sh dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/python -m mypy $(SOURCES)
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/hadolint $(DOCKERFILES)
	$(BIN)/zizmor --offline --pedantic --quiet .github

format: ## format the sources and make the lint fixes that are safe
	@scripts/env.sh dev
	$(BIN)/ruff check --fix-only $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

lock: ## make docker/requirements.*.txt from the .in files (UPGRADE=1 moves what they do not pin)
	@scripts/env.sh tools
	@.cache/tools/bin/python scripts/lock.py $(if $(UPGRADE),--upgrade)

docs: ## make the report's schema and README's tables from the code
	@scripts/env.sh run
	@$(BIN)/python scripts/docs.py

clean: ## remove the environments, caches and reports
	rm -rf .venv .cache reports .mypy_cache .ruff_cache .pytest_cache .hypothesis unsloth_compiled_cache
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +
