# Two commands: `make demo` shows what this is, `make test` shows that it works.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/pytest -n auto --dist loadfile

EXTRAS := dev,docs,flower,mlflow,search,tensorboard,wandb

.PHONY: demo test test-all test-network network-methods network-deploy test-browser test-wheel chromium package constraints docs lint clean

demo: $(VENV)/.installed
	$(BIN)/fedaf demo
	@echo "Next: . $(BIN)/activate, then fedaf --help"

# Minutes: every formula, contract and error.
test: lint
	$(PYTEST)

# Everything: also the documentation, long fuzzing, kill matrices, the wheel alone, reports in a browser and federations over Flower.
test-all: lint docs
	$(PYTEST) -m 'not network and not wheel and not browser'
	$(MAKE) test-wheel
	$(MAKE) test-browser
	$(MAKE) test-network

# Reports in a browser that reaches no host.
test-browser: $(VENV)/.installed-dev chromium
	$(BIN)/pytest -m browser

AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
APT := $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get -qq

# Debian's browser; the one that playwright would download is not needed.
chromium:
	command -v chromium > /dev/null || { $(APT) update && $(APT) install -y --no-install-recommends chromium; }

# Federations over Flower on loopback, in two halves at once, since they mostly wait.
METHODS := $(addprefix tests/network/test_,resume.py same_numbers.py trouble.py)

test-network: $(VENV)/.installed-dev
	$(MAKE) --jobs 2 network-methods network-deploy

network-methods:
	$(BIN)/pytest -m network --durations 5 $(METHODS)

network-deploy:
	$(BIN)/pytest -m network --durations 5 tests/network $(addprefix --ignore=,$(METHODS))

# The site, in build/docs. It needs no network once the tools are installed, and a warning is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going --quiet -b html docs build/docs
	@echo "open build/docs/index.html"

# The files for a release, in dist/: a source distribution, and the wheel that is built from it. The wheel's files have
# the time of the commit, so that two builds of a commit with one setuptools have one hash. The list of files in an
# egg-info of an earlier build would add to the new one.
SHA256 := $(shell command -v sha256sum || echo shasum -a 256)

package: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
package: $(VENV)/.installed-dev
	rm -rf dist src/*.egg-info
	$(BIN)/python -m build --outdir dist .
	cd dist && $(SHA256) *.tar.gz *.whl

# The wheel, installed alone outside of this checkout, and what is in it.
test-wheel: package
	$(BIN)/pytest -m wheel tests/release

# Every extra has its versions in constraints.txt; tools/constraints.py describes UPGRADE="NAME NAME".
constraints:
	$(PYTHON) tools/constraints.py --upgrade $(UPGRADE)

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
	$(PIP) --editable '.[$(EXTRAS)]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing the tools of the documentation into $(VENV)"
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
