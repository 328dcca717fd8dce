# Everything a fresh machine needs: `make demo`, `make test`. Both first install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.plait-core
DEV := $(VENV)/.plait-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Two test processes of one thread each beat one process of two threads. Each takes half of the files and, when it is
# done, some of the other's, so that what the tests of a file share is computed once. Bytecode is kept, so that processes
# which tests start need not compile plait again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: setup core demo test test-all lint pytest bench docs site notebook clean

setup: $(DEV)

core: $(CORE)

# The versions of constraints.txt, torch's above all: a looser request would pull CUDA packages onto machines that have
# no use for them.
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e .
	touch $@

# All in one request, which takes two thirds of the time of one after the other. Little of it is ever imported, and is
# compiled when it is.
$(DEV): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -c constraints.txt -e '.[dev]'
	touch $(CORE) $@

# The main use case, on this machine, with built-in data; resumes if interrupted. The report is runs/report.html.
demo: core
	$(BIN)/plait design --out runs/report.html

# Types are checked in parallel with the tests: alone they would leave a core idle for a minute.
test: setup
	$(MAKE) --jobs=2 --no-print-directory lint pytest

pytest: setup
	$(PYTEST) $(ALL)

# Includes the tests that need Ray, submitit, wandb and mlflow, which are installed first.
test-all: setup
	$(PIP) -c constraints.txt -e '.[cluster,wandb,mlflow]'
	$(MAKE) --jobs=2 --no-print-directory lint pytest ALL="-m 'slow or not slow'"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/mixers.py

docs: setup
	$(BIN)/python docs/generate.py

# All pages as HTML, with a search, to open from a folder: build/site/index.html.
site: setup
	$(BIN)/python docs/build.py

# examples/tour.ipynb with its outputs; nbclient and ipykernel run it.
notebook: setup
	$(PIP) -c constraints.txt nbclient ipykernel
	$(BIN)/python docs/notebook.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
