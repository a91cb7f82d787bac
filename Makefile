# Everything that a developer does here. Needs Linux, Python >= 3.11 and make; all else is fetched or built, into .venv and the cache folder
# ($ENGINEFLEET_CACHE, by default ~/.cache/enginefleet). `make help` lists the targets.

# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
RUN := .venv/bin/python
ARGS ?=
# the tests start hundreds of Pythons, which would all compile our source anew
unexport PYTHONDONTWRITEBYTECODE
SOURCES := crds operator agent builder cli localcluster tools demo bench tests examples

.PHONY: help setup provide demo demo-fleet test browser check format generate bench lock images clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A .venv that is there looks after itself, which spares the search for a Python.
setup: ## make .venv (1 to 3 minutes the first time)
	@if [ -x $(RUN) ] && $(RUN) -S tools/bootstrap.py --check; then :; \
	elif [ -z "$(PYTHON)" ]; then echo "No Python >= 3.11 was found: install one, or name it with make PYTHON=/path/to/python3"; exit 1; \
	else $(PYTHON) tools/bootstrap.py; fi

provide: setup ## runtime images, kubectl, bubblewrap and the local cluster's binary (5 to 15 minutes the first time: a Go build)
	@$(RUN) -m tools.provide

demo: provide ## the whole chain on a local cluster; ARGS=--keep leaves it running, KUBE_CONTEXT=name uses a cluster of yours
	@$(RUN) -m demo.demo $(if $(KUBE_CONTEXT),--context $(KUBE_CONTEXT)) $(ARGS)

demo-fleet: provide ## thirty nodes of four classes: rollouts, a failed one, an upgrade, nodes that are away (2 cores, 10 GB, under 10 minutes)
	@$(RUN) -m demo.fleet $(ARGS)

test: provide ## all tests, four files at a time: half of them wait; ARGS="tests/unit -k name" for some
	@$(RUN) -m pytest $(if $(ARGS),$(ARGS),-n 4 --dist loadfile --no-loadscope-reorder)

browser: setup ## the report's page in a real Chromium, which must be installed (a minute); ARGS="--screenshots FOLDER" keeps what it looked like
	@$(RUN) -m pytest tests/browser $(ARGS)

check: setup ## formatting, lint, types, layers, generated files
	@$(RUN) -m tools.check $(ARGS)

format: setup ## let ruff rewrite the source
	@$(RUN) -m ruff format $(wildcard $(SOURCES)) && $(RUN) -m ruff check --fix $(wildcard $(SOURCES))

generate: setup ## crds/*.yaml from the models in crds/enginefleet_api
	@$(RUN) -m tools.generate

bench: provide ## measure, and write docs/benchmarks/chain.json
	@$(RUN) -m bench.chain $(ARGS)

lock: setup ## requirements/*.lock from pyproject.toml; ARGS=--upgrade for newer versions
	@$(RUN) -m tools.lock $(ARGS)

images: setup ## the local cluster's images alone, with their digests
	@$(RUN) -m tools.images

clean: ## remove .venv and caches in this folder (not the shared cache folder)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
