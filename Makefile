# Every target works on a fresh machine with Python (3.10 or newer) and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1

.PHONY: packages compat kills corpus stress demo test lint format docs newcomer bench studies clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)          ## check a deep Transformer that cannot train, apply the fix, check it again; HTML report
	$(BIN)/sigprop demo

test: $(READY)          ## the default test suite (under ten minutes on two cores)
	$(BIN)/python -m pytest --numprocesses 2

lint: $(READY)          ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)          ## strict build of the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

newcomer: $(READY)      ## the wheel in a fresh environment without extras; every page's blocks as written
	$(BIN)/python -m tests.newcomer

compat: $(READY)        ## the core of the suite on older releases of PyTorch, each in an environment of its own
	$(BIN)/python -m tests.releases

packages: $(READY)      ## wheel and source distribution checked, and installed under every Python that is here
	$(BIN)/python -m tests.packages

bench: $(READY)         ## side-by-side timings, as ratios
	$(BIN)/python -m bench

stress: $(READY)        ## threads, 2,000 interrupts and random networks in their long form
	SIGPROP_STRESS=1 $(BIN)/python -m pytest tests/robustness

kills: $(READY)         ## sweeps killed with kill -9 at ten random moments, local and on Ray (extra ray)
	$(BIN)/python -m tests.research.lab.killed_sweeps --out docs/data/killed_sweeps.json

corpus: $(READY)        ## twenty models against a witness: those that are not stored yet, and the tables of their page
	$(BIN)/python -m studies.corpus.fresh
	$(BIN)/python -m studies.corpus.page

studies: $(READY)       ## the slow tests
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) site out build dist
