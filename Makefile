# `make` alone says what there is.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
NAME ?= main

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: install
install: $(STAMP) ## Make .venv with everything in it; does nothing when nothing changed

$(STAMP): requirements/dev.txt pyproject.toml sdk/pyproject.toml scripts/install.sh
	@PYTHON="$(PYTHON)" scripts/install.sh
	@touch $@

.PHONY: demo
demo: install ## Show the whole system at work, in less than a minute
	$(BIN)/reach demo

.PHONY: up
up: install ## Start everything on this machine and stay
	$(BIN)/reach up

.PHONY: test
test: install ## Run the fast tests
	$(BIN)/pytest -n 2 -m "not slow"

.PHONY: test-slow
test-slow: install ## Run the tests that take long
	$(BIN)/pytest -m slow || [ $$? -eq 5 ]  # 5: there are none

.PHONY: check
check: install ## Check format, rules, types, imports, contracts, generated code and the lock file
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/buf breaking protos --against protos/released.binpb --exclude-imports
	scripts/generate.sh --check
	$(BIN)/python scripts/check_lock.py

.PHONY: gen
gen: install ## Generate the stubs from the contracts, and the JSON Schema of policies.yaml
	scripts/generate.sh

.PHONY: release-contract
release-contract: install ## Take the contracts as released: from now on they only grow
	$(BIN)/buf build protos -o protos/released.binpb --exclude-source-info

.PHONY: lock
lock: install ## Write requirements/*.txt anew, with the newest versions that fit
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
		--group dev pyproject.toml sdk/pyproject.toml --all-extras --no-emit-package agent-reach --upgrade \
		-o requirements/dev.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
		--group bench --constraint requirements/dev.txt --upgrade -o requirements/bench.txt

.PHONY: format
format: install ## Format the code and the contracts
	$(BIN)/ruff check --fix-only --exit-zero
	$(BIN)/ruff format
	$(BIN)/buf format -w protos

.PHONY: bench
bench: install $(if $(filter durable,$(NAME)),.venv/bench-installed) ## Run a benchmark: make bench NAME=main or durable
	$(BIN)/python -m bench.$(NAME)

.venv/bench-installed: requirements/bench.txt $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps -r requirements/bench.txt
	@touch $@

.PHONY: clean
clean: ## Remove what was built, and .venv; .reach (your data) stays
	rm -rf .venv build dist *.egg-info sdk/*.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
