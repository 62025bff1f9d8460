# Two commands: `make demo` shows what this is, `make test` shows that it works.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/pytest -n auto --dist loadfile

.PHONY: demo test test-all test-network network-methods network-deploy lint clean

demo: $(VENV)/.installed
	rm -rf runs/demo
	$(BIN)/fedaf compare --dataset digits --methods fedaf-plus,fedaf,fedavg,pooled,local --alpha 0.02 --clients 10 --rounds 8 --out runs/demo
	@echo "Next: . $(BIN)/activate, then fedaf --help"

# Minutes: every formula, contract and error.
test: lint
	$(PYTEST)

# Everything: also long fuzzing, kill matrices and federations over Flower.
test-all: lint
	$(PYTEST) -m 'not network'
	$(MAKE) test-network

# Federations over Flower on loopback, in two halves at once, since they mostly wait.
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

# An editable installation: a changed source file needs no new installation.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fedaf needs Python 3.11 or newer, not " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo "installing fedaf and its dependencies into $(VENV)"
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing test dependencies into $(VENV)"
	$(PIP) --editable '.[dev,flower]'
	touch $@

clean:
	rm -rf $(VENV) build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
