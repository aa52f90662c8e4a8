# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-flower lint bench docs clean

demo: $(VENV)/.core
	@$(BIN)/fedbudget demo --out runs/demo

test: lint
	$(BIN)/pytest -q -n auto --maxprocesses 4

# what takes minutes
test-slow: $(VENV)/.dev
	$(BIN)/pytest -q -m slow

# the same runs on Flower: its simulation, and a deployment on loopback
test-flower: $(VENV)/.dev
	$(BIN)/pytest -q -m flower tests/flower -W ignore::ResourceWarning  # Ray's own files

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/overhead.py --out docs/benchmarks.md
	$(BIN)/python benchmarks/codecs.py --out docs/benchmarks.md
	$(BIN)/python benchmarks/flower.py --out docs/benchmarks.md
	$(BIN)/python benchmarks/agents.py --out docs/results/agents

# every code block, command and link in the documents
docs: $(VENV)/.dev
	$(BIN)/pytest -q tests/test_docs.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing fedbudget and what it needs into $(VENV) (once; a minute or two)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing fedbudget and its development tools into $(VENV) (once; a few minutes)"
	@$(PIP) -e ".[dev,hf,flower,privacy]"
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) runs
