# make help lists what there is; every target sets up what it needs in .venv
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# a thousand processes of the tests would each compile all that they import, which takes four times as long as the rest of a small run
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check types rules docs release proto bench bench-batch bench-hta bench-history bench-service bench-serving bench-truth beyond clean quick fuzz wheels
help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:[^#]*## */\t/' | expand -t 16

# the tools that build the kernels come first: so they are not installed once more, for this build alone
$(STAMP): pyproject.toml server/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sed -n '/^requires = \[/,/^\]/s/^ *"\(.*\)",$$/\1/p' pyproject.toml > $(VENV)/build-tools.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/build-tools.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]' --editable './server[otel,http,postgres,store,oidc]'
	touch $@

demo: $(STAMP)   ## simulates and augments a small job, prints its main figures and which file to open
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

# four workers for two cores: tests of servers, browsers and clusters wait for other processes half of their time
test: $(STAMP)   ## all tests
	$(BIN)/python -m pytest -q -n 4 --dist worksteal

quick: $(STAMP)  ## the tests that are neither slow nor of the service: one to five minutes
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not server"

beyond: $(STAMP) ## the tests of the service with PostgreSQL and an S3 store for each server in them: ten minutes
	$(BIN)/python -m pytest -q -n 4 --dist worksteal --beyond -m "server and not embedded"

fuzz: $(STAMP)   ## mutated traces for SECONDS (600), from SEED on (1); and other examples for tests of random ones
	$(BIN)/python tests/support/fuzzing.py --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1)
	$(BIN)/python -m pytest -q -n 2 -m hypothesis --hypothesis-profile=explore --hypothesis-seed=$(or $(SEED),1)

# mypy takes as long as all the others, on one core
check: $(STAMP)  ## style, types, layers, the API by buf, that generated pages are up to date, subjects of commits
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target types rules

types: $(STAMP)
	$(BIN)/mypy

rules: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python proto/generate.py --check
	$(BIN)/python proto/judge.py
	$(BIN)/python tests/house/commit_subjects.py

release: $(STAMP) ## VERSION: joins changelog.d/ into CHANGELOG.md and sets the version
	$(BIN)/python -m building.release $(VERSION)

docs: $(STAMP)   ## write the generated pages anew
	$(BIN)/python docs/generate.py

proto: $(STAMP)  ## write augment/v1 anew from proto/
	$(BIN)/python proto/generate.py

bench: $(STAMP)  ## every goal of speed and memory in a table; CPU against the floor at 200 MB and 1.5 GB; all analyses; native format
	$(BIN)/python benchmarks/goals.py
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/analyses.py
	$(BIN)/python benchmarks/native.py

bench-batch: $(STAMP)  ## ranks a minute with one process and two; merging; 1 000 ranks killed and started again; cost of comparing ranks
	$(BIN)/python benchmarks/batch.py
	$(BIN)/python benchmarks/jobs.py

bench-hta: $(STAMP)  ## HTA's figures beside ours for the traces below TRACES, by default of the examples
	$(BIN)/python benchmarks/hta_compare.py $(or $(TRACES),examples/traces)

bench-history: $(STAMP)  ## years of runs that never changed: how many have a change of six kinds of noise, and how often one is found
	$(BIN)/python benchmarks/history.py

bench-service: $(STAMP)  ## the service under load, on loopback: throughput beside the command alone, latency, memory; crowds and kills
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/service_load.py

bench-truth: $(STAMP)  ## faults of an independent generator in ../shared: how many are named, and how far promises miss; ARGS=--quick
	$(BIN)/python benchmarks/truth.py $(ARGS)

bench-serving: $(STAMP)  ## simulated engines with known truth: how many faults are named, and healthy ones accused
	$(BIN)/python benchmarks/serving.py $(ARGS)

wheels: $(STAMP) ## dist/ for a registry: wheels of all platforms and sources, inspected, installed and run where this machine can
	$(BIN)/python -m building.wheels

clean:           ## remove what make made
	rm -rf $(VENV) demo-output benchmarks/.cache
