# The only door to routine work; `make help` prints the list.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Settings of single targets.
FULL ?=
ONCE ?=
SEEDS ?= 200
PYTEST ?=

.PHONY: help setup setup-dev run check test reuse-sglang judge-sglang judge-text parity bench-kv bench-path bench-edge sim chaos fuzz-edge soak soak-kv cancels lock generate clean

help: ## Print this list.
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(VENV)/.runtime ## Install what `make run` needs into .venv.

setup-dev: $(VENV)/.dev ## Install what `make check` and `make test` need too.

$(VENV)/.runtime: requirements/worker.txt requirements/model.txt pyproject.toml
	@bash ops/check/setup.sh "$(PYTHON)" "$(VENV)" runtime

$(VENV)/.dev: requirements/dev.txt requirements/model.txt pyproject.toml
	@bash ops/check/setup.sh "$(PYTHON)" "$(VENV)" dev

run: setup ## Start everything, ask one question, serve until Ctrl-C (ONCE=1: end after the answer).
	@exec $(BIN)/python -m ops.cli run $(if $(ONCE),--once)

check: setup-dev ## The one gate: format, lint, types, import rules, size, generated files.
	@failed=""
	step() { local name="$$1"; shift; echo "== $$name"; "$$@" || failed="$$failed $$name"; }
	step format $(BIN)/ruff format --check --quiet .
	step lint $(BIN)/ruff check .
	step types $(BIN)/pyright
	step imports $(BIN)/lint-imports
	step size $(BIN)/python -m ops.check.size
	step schemas $(BIN)/python -m ops.check.schemas --check
	step tables $(BIN)/python -m ops.check.tables --check
	if [ -n "$$failed" ]; then echo "check: failed:$$failed"; exit 1; fi
	echo "check: all green"

test: setup-dev ## Run the default suite in two lanes (PYTEST="args": what they select, in one).
	@exec $(BIN)/python -m $(if $(strip $(PYTEST)),pytest $(PYTEST),tests.lanes)

sim: setup-dev ## Run the simulator on SEEDS seeds.
	@$(BIN)/python -m tests.sim --seeds $(SEEDS)

chaos: setup-dev ## Kill, stop and part real processes under load for MINUTES (10), from SEED.
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

fuzz-edge: setup-dev ## Send CASES (20000) made-up requests to the REST edge, from SEED.
	@$(BIN)/python -m tests.fuzz --cases $(or $(CASES),20000) $(if $(SEED),--seed $(SEED))

soak: setup-dev ## Steady load for MINUTES (20): how memory, files and subscriptions grow.
	@$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),20)

soak-kv: setup-dev ## 20,000 transfers, 180 deaths of peers, storms: right bytes only, and nothing is left.
	@$(BIN)/python -m pytest tests/integration/transfer/faults -m slow -q -s

cancels: setup-dev ## Let COUNT (2000) clients leave at random: when both sides are free.
	@$(BIN)/python -m tests.chaos.cancels --count $(or $(COUNT),2000)

reuse-sglang: setup-dev ## Abort 200 transfers of a real SGLang pair and use their pages again at once.
	@$(BIN)/python -m pytest tests/integration/sglang/test_reuse.py -m slow -q -s

judge-sglang: setup ## Abort, kill and cancel in every phase of a real SGLang pair (CANCELS=100).
	@$(BIN)/python -m ops.bench.judge --cancels $(or $(CANCELS),100)

judge-text: setup-dev ## Ask SmolLM2 through the whole product: text, stops, log-probabilities, schemas, calls.
	@$(BIN)/python -m pytest tests/integration/sglang/test_answers.py -m slow

parity: setup ## Compare 1 prefill + 1 decode with one aggregated engine, token by token.
	@$(BIN)/python -m ops.bench.parity

bench-kv: setup ## Measure the data plane beside NIXL, Mooncake, ucx_perftest and the machine (FULL=1: all).
	@$(BIN)/python -m ops.bench.kv $(if $(FULL),--full)

bench-path: setup ## Measure 1 prefill + 1 decode against one aggregated engine.
	@$(BIN)/python -m ops.bench.path

bench-edge: setup ## Measure the whole system's edge against an engine that is asked directly.
	@$(BIN)/python -m ops.bench.edge

generate: setup-dev ## Write the generated files again: schemas, tables, .env.example.
	@$(BIN)/python -m ops.check.schemas
	$(BIN)/python -m ops.check.tables

lock: setup-dev ## Compile requirements/*.txt from pyproject.toml again.
	@$(BIN)/python -m ops.check.lock

clean: ## Remove the environment, the state folder and all caches.
	@rm -rf $(VENV) .pdbus .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
