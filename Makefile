# Two commands on a fresh machine: `make demo` and `make test`.  Each does its own set-up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := .make/venv.stamp
PYTEST := $(BIN)/pytest
BY_FILE := --dist loadfile --no-loadscope-reorder
PROCESSES := tests/integration/process
# Tests that need no engine note which lines run. They compute, but for waits: one file more at a time than cores.
COVERED := $(BY_FILE) -n $(shell expr $$(nproc) + 1) --maxprocesses 8 -p scripts.coverage_plugin tests/unit $(PROCESSES)
# The others wait, most of them for an engine: six files at a time. tests/conftest.py puts the longest first.
# Beside them, as they wait, run the few with daemons in two parts.
OTHERS := $(BY_FILE) -n 6 --ignore=$(PROCESSES) tests/chaos tests/integration tests/contract tests/gpu
# The user of the part that answers, where the daemons of tests are in two parts, and what `make test` runs so.
SPLIT_USER ?= games
SPLIT := $(BY_FILE) -n 4 tests/chaos tests/integration tests/contract
SPLIT_FEW := $(BY_FILE) -n 2 -k "not forwarded or two_users" tests/chaos/test_daemon_stopped.py tests/integration/test_end_to_end.py tests/integration/process/runner/client/test_remote.py tests/integration/process/runner/server/test_disk_rates.py \
	tests/integration/test_checkpoints_hostile.py $(PROCESSES)/runner/services/sessions

# Hundreds of daemons and commands are started: what Python has compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help ready demo demo-restart demo-restart-told demo-share demo-sweep demo-slurm test test-split test-hosts test-next test-kernel test-cuda-image test-mlflow test-scripts check fix unit soak bench examples docs docs-reference graph venv engine slurm release-notes release-check clean

help:
	@echo "make demo          train, kill, resume and compare, in containers on this machine"
	@echo "make demo-restart  change a running job: restart or resume, by measurement; make demo-restart-told is the same"
	@echo "make demo-share    short trainings take turns with a long one, beside first come, first served"
	@echo "make demo-sweep    27 candidates of which the best go on, killed half-way, beside the whole grid"
	@echo "make demo-slurm    the same on a small Slurm cluster that it starts: lose the node, resume on another"
	@echo "make examples      every example that needs no GPU, as shipped, beside its trivial predictor"
	@echo "make test          everything that can fail: checks, site, unit, contract, integration and chaos tests"
	@echo "make test-split    as root: all tests that start daemons, with daemons in two parts"
	@echo "make test-hosts    as root: test-next, then test-kernel"
	@echo "make test-next     as root: contract, images, packages, played NVIDIA cards and the demo on Debian's next release"
	@echo "make test-kernel   as root: contract, systemd, AppArmor, NFS, other engines on Debian 13 under a second kernel"
	@echo "make test-mlflow   a training and a real MLflow server, both killed (280 MB)"
	@echo "make test-scripts  scripts of the field, each killed and held on its way: JAX, a notebook, torchvision and more (400 MB)"
	@echo "make test-cuda-image  the CUDA image from its wheels (2.7 GB, 15 GB of disk): import torch, missing libraries"
	@echo "make check         the static checks, in seconds"
	@echo "make unit          the unit tests"
	@echo "make soak          what is drawn at random, with new seeds for MINUTES=60"
	@echo "make docs          the documentation as a site, in build/docs"
	@echo "make release-check  sdist, wheel, lowest versions, Debian package: each built and used"
	@echo "make graph         the imports between the packages, drawn into docs/explanation/architecture.md"
	@echo "make bench         this runner beside its alternatives, as ratios"

venv: $(STAMP)

$(STAMP): pyproject.toml package-lock.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old: 3.11 or newer is needed; with uv: make PYTHON=\"\$$(uv python find 3.12)\" (uv python install 3.12)" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@scripts/dashboard-assets
	@mkdir -p .make && touch $@

# Says what it does; leaves the address of an engine in .make/engine.  Without one, tests that need it
# are skipped on a laptop; where CI is set, this fails and so do they.
engine:
	@mkdir -p .make
	@scripts/engine > .make/engine || [ -z "$$CI" ]

# A Slurm of four nodes on this machine, for the tests; scripts/slurm stop ends it.  The same holds without one.
slurm:
	@mkdir -p .make
	@scripts/slurm > .make/slurm || [ -z "$$CI" ]

demo: venv
	@mkdir -p .make
	@scripts/engine > .make/engine || echo "no container engine: the demo goes on with plain processes"
	@DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.demo

demo-restart demo-restart-told: venv
	@mkdir -p .make
	@scripts/engine > .make/engine || echo "no container engine: the demo goes on with plain processes"
	@DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.demo_restart

# Which ones: make examples ONLY="demo matrix".  Without it all that need no GPU, a quarter of an hour on two cores.
examples: venv
	@mkdir -p .make
	@scripts/engine > .make/engine || echo "no container engine: the examples go on as plain processes" >&2
	@DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.examples $(ONLY)

# The cluster is ended with it.  The other run is in a container if an engine answers.
demo-sweep: venv
	@mkdir -p .make
	@scripts/engine > .make/engine || echo "no container engine: the demo goes on with plain processes"
	@DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.demo_sweep

demo-slurm: venv
	@mkdir -p .make
	@scripts/slurm > .make/slurm
	@scripts/engine > .make/engine || echo "no container engine: the run beside it is a plain process"
	@trap 'scripts/slurm stop' EXIT; DOCKER_HOST="$$(tail -n 1 .make/engine)" SLURM_CONF="$$(tail -n 1 .make/slurm)" $(BIN)/python -m scripts.demo_slurm

demo-share: venv
	@mkdir -p .make
	@scripts/engine > .make/engine || echo "no container engine: the demo goes on with plain processes"
	@DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.demo_share

# Checks and site compute while the engine, Slurm, the tools and the image are waited for.
test: venv
	@$(MAKE) --no-print-directory -j3 --output-sync=target ready check docs
	rm -rf .coverage
	scratch="$$(scripts/scratch)"; trap 'scripts/scratch "$$scratch"; scripts/slurm stop' EXIT HUP INT TERM; \
	export DOCKER_HOST="$$(tail -n 1 .make/engine)" SLURM_CONF="$$(tail -n 1 .make/slurm)" TMPDIR="$$scratch"; \
	$(BIN)/python -m pytest -q $(COVERED) && $(BIN)/python scripts/coverage_check.py || exit; \
	few=; if [ "$$(id -u)" = 0 ]; then TEST_DAEMON_USER=$(SPLIT_USER) $(BIN)/python -m pytest -q --basetemp="$$scratch/two" $(SPLIT_FEW) >"$$scratch/few" 2>&1 & few=$$!; fi; \
	$(BIN)/python -m pytest -q $(OTHERS); others=$$?; \
	[ -z "$$few" ] || { wait "$$few"; few=$$?; echo "daemons in two parts:"; cat "$$scratch/few"; }; \
	[ "$$others $${few:-0}" = "0 0" ]

# What tests with an engine need, one after the other: each may install something.
ready: venv engine
	@$(MAKE) --no-print-directory slurm
	scripts/test-tools
	DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.image

# Daemons of root for all users, one part of which gives up root: docs/operate/security.md.
test-split: venv
	@[ "$$(id -u)" = 0 ] || { echo "make test-split: only root has rights to give up" >&2; exit 1; }
	@$(MAKE) --no-print-directory ready
	scratch="$$(scripts/scratch)"; trap 'scripts/scratch "$$scratch"; scripts/slurm stop' EXIT HUP INT TERM; \
	export DOCKER_HOST="$$(tail -n 1 .make/engine)" SLURM_CONF="$$(tail -n 1 .make/slurm)" TMPDIR="$$scratch" TEST_DAEMON_USER=$(SPLIT_USER); \
	$(BIN)/python -m pytest -q --basetemp="$$scratch/two" $(SPLIT) $(ONLY)

test-hosts: test-next test-kernel

# In namespaces of their own; 6 GB below /var/cache/runner-hosts, and minutes to make the root directory once.
test-next: venv engine
	DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m scripts.image
	DOCKER_HOST="$$(tail -n 1 .make/engine)" scripts/hosts $(ONLY)

# User Mode Linux, without a virtual machine; 8 GB there.
test-kernel: venv engine
	export DOCKER_HOST="$$(tail -n 1 .make/engine)"; image="$$($(BIN)/python -m scripts.image)" && RUNNER_IMAGE="$$image" scripts/kernel $(ONLY)

test-cuda-image: venv engine
	DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m pytest -q tests/wheels/test_cuda_image.py

test-scripts: venv engine
	DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m pytest -q -rA tests/integration/test_scripts.py tests/wheels/test_scripts.py

# The server of MLflow brings pandas and SciPy, so it has an environment of its own.
test-mlflow: venv
	@[ -x .make/tools/mlflow/bin/mlflow ] || { $(PYTHON) -m venv .make/tools/mlflow && .make/tools/mlflow/bin/python -m pip install --quiet mlflow; }
	$(BIN)/python -m pytest -q tests/wheels/test_mlflow_server.py

check: venv
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prose_check.py

fix: venv
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

# The inner loop: no test here starts a process or needs an engine.
unit: venv
	$(PYTEST) -q $(BY_FILE) -n auto --maxprocesses 8 tests/unit

# The long forms of what make test does a few times, one after the other until the time is over.
soak: venv engine slurm
	trap 'scripts/slurm stop' EXIT; DOCKER_HOST="$$(tail -n 1 .make/engine)" SLURM_CONF="$$(tail -n 1 .make/slurm)" $(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),60)

bench: venv engine
	DOCKER_HOST="$$(tail -n 1 .make/engine)" $(BIN)/python -m bench

# The documentation as a site, in build/docs.  Dead links and anchors, pages that the navigation leaves out and
# broken diagrams fail.
docs: venv
	$(BIN)/python -m scripts.docs.site

# The generated half of the pages in scripts/docs/__main__.py: commands, job file, policy facts, provenance, machines.
docs-reference: venv
	$(BIN)/python -m scripts.docs

# The diagram of the imports between runner's packages, in docs/explanation/architecture.md.
graph: venv
	$(BIN)/python -m scripts.import_graph

# Needs an index of packages: sdist, wheel, the lowest versions and a Debian package, each built and used.
release-check: venv
	scripts/release-check

# What has changed since the last version, by kind.
release-notes:
	@for kind in security removed changed fixed added; do set -- changes/*.$$kind.md; [ -e "$$1" ] || continue; \
	  printf '\n### %s\n\n' "$$kind"; for file; do sed '1s/^/- /; 2,$$s/^/  /' "$$file"; done; done

clean:
	rm -rf $(VENV) .make .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
