# Everything a reader or a contributor runs. Each target first sees to its environment (tools/setup.py: .venv, at the
# versions of constraints.txt); where that is up to date it takes a blink.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-all sanitize docs bench truth clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## photographs, and DNA with planted motifs: train, explain with LRP and PLRP, write a report to ./demo
	@$(PYTHON) tools/setup.py experiments
	@$(BIN)/plrp demo --out demo

test: ## linter, formatter, types, and the tests that need no more than minutes
	@$(PYTHON) tools/setup.py test
	@$(PYTHON) tools/browser.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not slow"
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --plain-walk $(FORMULAS)
	PLRP_NATIVE=0 $(BIN)/python -m pytest -q -n 2 -m "not slow" $(PRUNING)

test-core: ## the tests of the core, the tape and the fast code: what a change of a formula needs
	@$(PYTHON) tools/setup.py test
	$(BIN)/python -m pytest -q -n 2 -m "not slow" tests/test_*.py tests/tape tests/fast

# The readable code answers for itself: with the plain walk, without the compiled loops, and as if the folder of the
# fast code were gone (a first look at that: tests/project/test_architecture.py). `make test` runs the formulas so, `make test-all`
# the whole core.
PRUNING := $(patsubst %, tests/test_%.py, conservation gain_oracle pruning_oracle)
FORMULAS := $(PRUNING) $(patsubst %, tests/test_%.py, ledger rules_oracle)
CORE := $(FORMULAS) $(patsubst %, tests/test_%.py, \
	circuits conditions errors health invariance interop networks pieces pruning_edges theta units walk zennit) \
	$(patsubst %, tests/tape/test_%.py, own_rules recurrence replay trace) tests/metrics

test-all: test sanitize ## the same, whole networks at full size, sanitizers, and the core without its fast code
	@$(PYTHON) tools/setup.py test-all
	$(BIN)/python -m pytest -q -n 2 -m slow
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --plain-walk $(CORE) tests/fast
	PLRP_NATIVE=0 $(BIN)/python -m pytest -q -n 2 -m "not slow" $(CORE) tests/fast
	$(BIN)/python -m pytest -q -n 2 -m "not slow" --without-fast $(CORE)

sanitize: ## the compiled loops under AddressSanitizer, UBSan and ThreadSanitizer (gcc with its libraries)
	@$(PYTHON) tools/setup.py test
	$(BIN)/python tools/sanitize.py

docs: ## the documentation as a website in ./site
	@$(PYTHON) tools/setup.py docs
	$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: ## plrp beside its peers, and whether the goals are met: one table (QUICK=1: a short version)
	@$(PYTHON) tools/setup.py bench
	$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick)

truth: ## which explanation tells the truth: measures what is missing in benchmarks/measured, writes docs/truth.md (hours)
	@$(PYTHON) tools/setup.py bench
	$(BIN)/python benchmarks/truth.py --page docs/truth.md
	$(BIN)/python benchmarks/truth_lattice.py --page docs/truth.md

clean: ## remove what the targets above made, but for .venv
	rm -rf demo bench site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
