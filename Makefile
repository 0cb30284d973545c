# make demo: the quickstart sweep.  make test: everything that has to pass.  Both set up .venv first.
# make test-nightly: the long tests that `make test` leaves out; planted hangs alone take about an hour.
# make bench: what the harness costs and saves beside what a user would pick instead, in about half an hour; nothing
# else should run meanwhile. The table is left in results/bench. QUICK=1 only tries it, in a minute. MNIST=FOLDER trains on
# its IDX files, as the guide's figures do, and not on the digits of scikit-learn.
# make campaign: faults strike a small sweep for CAMPAIGN_MINUTES, 60 if it is not set; results in build/campaign.
# make mutants: MUTANTS planted defects and as many equal runs, 200 if it is not set, and KILLS kills and interruptions of
# trials that save at intervals, 300 if it is not set; SLURM_KILLS as many jobs on a real Slurm, as root, none if it is not set.
# make bench-scale: how commands grow with trials and cells, and assembling a record with its ranks and steps, in about four
# minutes; nothing else should run meanwhile. The tables are left in results/bench.
# make bench-statistics: how often intervals and sequential tests are wrong, by simulation, in five minutes; tables are left in
# results/bench.
# make tables: seconds an epoch beside a textbook's loop and JAX; the tables are left in results/bench.
# make bench-gate: how soon a gate finds a slower loop and how often it is wrong, in about an hour.
# make gpu: what only a GPU can show, in ten minutes, with the Python and the packages that the machine has;
# DEVICE=cpu SMALL=1 tries the same code on a CPU. A page and all records lie in build/gpu.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Container images set it, and without compiled files every process would compile torch's sources for itself.
unexport PYTHONDONTWRITEBYTECODE
# Slurm's daemons lie there, and not every root has it in its path.
export PATH := $(PATH):/usr/sbin:/sbin

CAMPAIGN_MINUTES ?= 60
MUTANTS ?= 200
KILLS ?= 300
SLURM_KILLS ?= 0
DEVICE ?= cuda
TESTS := not nightly

.PHONY: demo test test-together test-nightly campaign mutants bench bench-scale bench-statistics bench-gate tables gpu setup \
	setup-test system-packages lint clean
.DELETE_ON_ERROR:

demo: setup
	@echo "==> Running the quickstart sweep (one to two minutes)"
	@$(BIN)/harness run quickstart || { test $$? -eq 3 && echo "==> Trials that are marked as invalid were disturbed, usually by \
	another program. They are left out of all means, and this repeats only them: $(BIN)/harness run quickstart"; }
	@echo "==> Look at the runs in MLflow: $(BIN)/harness ui"

# Packages of the system are installed beside those of Python, and types are checked beside tests: no test of the first
# stage measures time.
test:
	@$(MAKE) --no-print-directory --jobs 3 lint test-together

# Some of these tests may take an hour, which pyproject.toml's limit for what hangs outside Python would cut short.
test-nightly:
	@$(MAKE) --no-print-directory test-together TESTS=nightly LIMIT="-o faulthandler_timeout=3660"

# pytest exits with 5 where PYTEST_ARGS leaves a stage without a test.
test-together: $(VENV)/.compiled system-packages
	@echo "==> Tests, in three processes"
	@OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 10 \
		-m "$(TESTS)" $(LIMIT) $(PYTEST_ARGS) || test $$? -eq 5

campaign: setup-test
	@echo "==> Faults for $(CAMPAIGN_MINUTES) minutes"
	@$(BIN)/python -m tests.programs.campaign --output build/campaign --minutes $(CAMPAIGN_MINUTES)

mutants: setup-test
	@echo "==> $(MUTANTS) planted defects, as many equal runs, and $(KILLS) kills"
	@rm -rf build/mutants
	@$(BIN)/python -m tests.programs.mutants --output build/mutants --mutants $(MUTANTS) --kills $(KILLS) \
		--slurm-kills $(SLURM_KILLS)

bench: setup-test
	@$(BIN)/python -m tests.programs.perf.bench $(if $(QUICK),--quick)

bench-scale: setup-test
	@$(BIN)/python -m tests.programs.perf.scale $(if $(QUICK),--quick)

bench-statistics: setup-test
	@$(BIN)/python -m tests.programs.perf.error_rates $(if $(QUICK),--quick)

bench-gate: setup-test
	@$(BIN)/python -m tests.programs.perf.gate $(if $(QUICK),--quick)
	@rm -rf build/certify
	@HARNESS_RESULTS=build/certify $(BIN)/harness certify $(if $(QUICK),--comparisons 2)

# Without .venv: such a machine has its own torch, and may have no network to install another.
gpu:
	@$(PYTHON) -m tests.programs.gpu --output build/gpu --device $(DEVICE) $(if $(SMALL),--small)

tables: setup-test
	@echo "==> Seconds an epoch: a textbook's loop, the harness, torch.compile and JAX, in turn"
	@$(BIN)/python -m tests.programs.perf.tables $(if $(QUICK),--quick)

lint: $(VENV)/.installed-test
	@echo "==> ruff and mypy"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check . && $(BIN)/mypy

setup: $(VENV)/.installed
	@echo "==> The command is $(BIN)/harness. Your own script: $(BIN)/harness init train.py"
setup-test: $(VENV)/.installed-test system-packages
system-packages:
	@sh tests/system_packages.sh

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; give it as make PYTHON=python3.11")'
	@echo "==> Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	@echo "==> Installing the harness into $(VENV) (torch and MLflow are large)"
	@sh tests/install.sh .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.python pyproject.toml constraints.txt
	@echo "==> Installing the harness and what its tests need into $(VENV)"
	@sh tests/install.sh '.[test]'
	@touch $(VENV)/.installed $@

# Collects the tests, and imports what they import later: processes that start together would each compile all that for
# themselves. What can't be collected is reported by the tests' own run.
$(VENV)/.compiled: $(VENV)/.installed-test
	@echo "==> Compiling what the tests import"
	@$(BIN)/python -W ignore -c 'import torch._dynamo, torch.distributed.fsdp, harness.training.worker, mlflow.store.tracking.sqlalchemy_store, sklearn, \
		torch._inductor.compile_fx'
	@$(BIN)/pytest --collect-only -qq >/dev/null || true
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
