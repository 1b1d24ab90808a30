# Everything a reader or a contributor runs. Each target first sees to its environment (tools/setup.py: .venv, at the
# versions of constraints.txt); where that is up to date it takes a blink.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-slow test-all sanitize docs bench truth clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## photographs, and DNA with planted motifs: train, explain with LRP and PLRP, write a report to ./demo
	@$(PYTHON) tools/setup.py experiments
	@$(BIN)/plrp demo --out demo

test: ## linter, formatter, types, and the tests that need no more than minutes
	@$(PYTHON) tools/setup.py test
	@$(PYTHON) tools/browser.py
	@$(BIN)/python tools/tiers.py quick

test-core: ## the tests of the core, the tape and the fast code: what a change of a formula needs
	@$(PYTHON) tools/setup.py test
	$(BIN)/python -m pytest -q -n 2 -m "not slow" tests/test_*.py tests/tape tests/fast

test-slow: ## whole networks at full size, the core without its fast code, sanitizers (SHARD=2: the second of five shards)
	@$(PYTHON) tools/setup.py test-all
	@$(PYTHON) tools/browser.py
	@$(BIN)/python tools/tiers.py slow $(SHARD)

test-all: ## both, with one summary at the end
	@$(PYTHON) tools/setup.py test-all
	@$(PYTHON) tools/browser.py
	@$(BIN)/python tools/tiers.py all

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
	$(BIN)/python benchmarks/truth_books.py --page docs/truth.md
	$(BIN)/python benchmarks/truth_lattice.py --page docs/truth.md

clean: ## remove what the targets above made, but for .venv
	rm -rf demo bench site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
