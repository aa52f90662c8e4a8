# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-flower test-browser lint bench docs clean

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

# the dashboard and the report in a real browser
test-browser: $(VENV)/.dev
	@if ! command -v "$${CHROMIUM:-chromium}" >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium (once)"; \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null || true; \
	fi
	@if command -v "$${CHROMIUM:-chromium}" >/dev/null; then \
	  $(BIN)/pytest -q -m browser tests/browser; \
	else \
	  echo "SKIPPED test-browser: no Chromium is here and it could not be installed, so nothing was tested in a"; \
	  echo "browser. Install it (apt-get install chromium, as root) or set CHROMIUM to its path."; \
	fi

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

# ours beside Flower, pfl-research and a plain loop, about 40 minutes; parts: make bench PARTS="small start"
bench: $(VENV)/.dev $(PEERS)/flower/.ready $(PEERS)/pfl/.ready
	$(BIN)/python benchmarks/bench.py $(PARTS)

# each peer in an environment of its own, with pins of its own
$(PEERS)/%/.ready: benchmarks/peers/%.txt
	@echo "installing $* into $(PEERS)/$* (once; a minute or two)"
	@$(PYTHON) -m venv $(PEERS)/$*
	@$(PEERS)/$*/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# the documentation as a site in site/; every code block, command, link, doctest and notebook is checked
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean
	FEDBUDGET_SITE=site $(BIN)/pytest -q tests/test_docs.py tests/test_site.py tests/test_notebooks.py
	@echo "read it: site/index.html, or with search: $(PYTHON) -m http.server --directory site"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing fedbudget and what it needs into $(VENV) (once; a minute or two)"
	@$(PIP) -e ".[dashboard]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing fedbudget and its development tools into $(VENV) (once; a few minutes)"
	@$(PIP) -e ".[dev,docs,hf,flower,privacy]"
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) $(PEERS) runs site
