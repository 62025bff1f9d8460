# Two commands: `make demo` shows what this is, `make test` shows that it works.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-network network-methods network-deploy lint clean

demo: $(VENV)/.installed
	rm -rf runs/demo
	$(BIN)/fedaf compare --dataset digits --methods fedaf,fedavg --alpha 0.02 --clients 10 --rounds 10 --out runs/demo
	@echo "Next: . $(BIN)/activate, then fedaf --help"

test: lint
	$(BIN)/pytest

# Federations over Flower on loopback: minutes, so apart from the rest, and in two halves at once, as they mostly wait.
METHODS := $(addprefix tests/network/test_,resume.py same_numbers.py trouble.py)

test-network: $(VENV)/.installed-dev
	$(MAKE) --jobs 2 network-methods network-deploy

network-methods:
	$(BIN)/pytest -m network --durations 5 $(METHODS)

network-deploy:
	$(BIN)/pytest -m network --durations 5 tests/network $(addprefix --ignore=,$(METHODS))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# What is installed is the package as it lies here, so a changed source needs no new installation.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedaf needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo "installing fedaf and what it needs into $(VENV)"
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need into $(VENV)"
	$(PIP) --editable '.[dev,flower]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
