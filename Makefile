# Two commands: `make demo` runs the main job, `make test` runs the tests.
# Everything else that a maintainer needs is listed by `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Timings of numpy on a busy machine are meaningless with idle BLAS threads around.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: help demo test test-all browser test-fast lint docs format programs bench-host bench-check bench-baseline validate tuner-truth test-triton-versions test-torch-versions test-tutorials conformance conformance-distributed conformance-compiled conformance-inductor conformance-gluon judge-truth judge-mutants judge-soak fuzz-kernels fuzz-mistakes fuzz-properties fuzz-saved test-libraries test-engines test-models test-serving test-vllm test-titan test-field test-operations changelog release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24

demo: $(VENV)/run.stamp ## run the tensor-parallel MLP on four simulated devices
	$(BIN)/kernbench run tp_mlp --trace out/tp_mlp.trace.json

test: $(VENV)/torch.stamp $(VENV)/readers.stamp ## run the whole test suite, PyTorch programs included
	$(BIN)/python -m pytest -n 2 -q

test-all: $(VENV)/torch.stamp $(VENV)/readers.stamp ## run the tests of campaigns, too, the last test first: weekly, and before a release
	$(BIN)/python -m pytest -n 2 -q --campaigns --backwards

browser: ## install Chromium for the tests of pages, where apt-get can; without it they are skipped
	@command -v chromedriver >/dev/null || timeout 300 sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver' >/dev/null 2>&1 || echo "no browser could be installed: the tests of pages are skipped"

test-fast: $(VENV)/dev.stamp ## run the tests that take seconds, not minutes
	$(BIN)/python -m pytest -n 2 -q -m "not slow"

lint: $(VENV)/dev.stamp ## what CI checks besides the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/docs.stamp ## build the site of all pages and of the docstrings into out/site
	$(BIN)/python -m sphinx -q -E -j 2 --fail-on-warning --keep-going -c tools/site -d out/doctrees . out/site
	@echo "open out/site/docs/index.html"

format: $(VENV)/dev.stamp ## format the code and sort its imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-host: $(VENV)/dev.stamp ## time the simulator itself, and write benches/host/RESULTS.md (eleven minutes)
	$(BIN)/python -m pytest benches/host -o addopts="" -o testpaths=benches/host -o python_files="bench_*.py" -s -q -rs --page benches/host/RESULTS.md

bench-check: $(VENV)/dev.stamp ## say what is slower than the baseline that is kept (half a minute)
	$(BIN)/python benches/host/speed_check.py

bench-baseline: $(VENV)/torch.stamp ## keep what is measured now as the baseline
	$(BIN)/python benches/host/speed_check.py --write

tuner-truth: $(VENV)/run.stamp ## compare published tuned configurations with modeled times (three minutes): ARGS="--kernel experts --rows 12"
	$(BIN)/python -m tools.tuner_truth $(ARGS)

validate: $(VENV)/validation.stamp ## score the model on measured rows: make validate DATA="gemm.csv ..." [ARGS="--kept FILE --again kernelbench.py"]
	@test -n "$(DATA)" || { echo 'name the files with measured rows: make validate DATA="gemm.csv membound.csv"'; exit 2; }
	$(BIN)/kernbench validate $(DATA) $(ARGS) --page docs/validation.md

programs: $(VENV)/torch.stamp ## fetch programs whose rows validate answers into build/programs: [ARGS="--from CLONES"]
	$(PIP) install --quiet --constraint constraints/locked.txt transformers==5.23.0 timm==1.0.31 torchvision scipy sentencepiece tiktoken pybind11 torchdata==0.11.0 "datasets>=4.8" tyro tensorboard torchao==0.18.0 onnxscript pydantic einops
	$(PIP) install --quiet --no-deps transformer_engine==2.20.2
	$(BIN)/python -m validation.programs.sources build/programs $(ARGS)

test-triton-versions: ## run the plug-in's tests on every supported Triton release: ARGS="3.8 3.7"
	$(PYTHON) tests/releases.py triton $(ARGS)

test-torch-versions: ## run the tests of PyTorch programs on every supported release: ARGS="2.15"
	$(PYTHON) tests/releases.py torch $(ARGS)

conformance: ## run Triton's own tests: TRITON=clone [ARGS="--update -n 2"]; needs torch and scipy
	$(BIN)/python tests/conformance/run_suite.py $(TRITON) $(ARGS)

conformance-distributed: $(VENV)/torch.stamp ## run PyTorch's own tests of DTensor and FSDP2: PYTORCH=clone [ARGS="--update --limit 300"]
	@test -d "$(PYTORCH)" || { echo "set PYTORCH to a clone of PyTorch that has the commit of the installed release"; exit 2; }
	$(BIN)/python tests/conformance/run_suite.py $(PYTORCH) --suite distributed $(ARGS)

conformance-compiled: $(VENV)/torch.stamp ## compare compiled operations with eager mode: ARGS="--every 4 --update" for one in 4
	$(BIN)/python -m tests.conformance.run_compiled $(ARGS)

conformance-inductor: $(VENV)/torch.stamp ## run PyTorch's own tests of Inductor: TESTS=.../test/inductor [ARGS="--update --share 0.2"]
	@test -d "$(TESTS)" || { echo "set TESTS to test/inductor of PyTorch's sources of the installed release"; exit 2; }
	$(BIN)/python tests/conformance/run_suite.py $(TESTS) --suite inductor --limit 120 $(ARGS)

conformance-gluon: $(VENV)/torch.stamp ## run the tests in Triton's tutorials of Gluon: TRITON=clone [ARGS="--update"]
	@test -d "$(TRITON)" || { echo "set TRITON to a clone of Triton, and the commit by ARGS=--commit"; exit 2; }
	$(BIN)/python tests/conformance/run_suite.py $(TRITON) --suite gluon $(ARGS)

test-tutorials: $(VENV)/torch.stamp ## run Triton's tutorials of a checkout: TUTORIALS=.../python/tutorials
	@test -d "$(TUTORIALS)" || { echo "set TUTORIALS to python/tutorials of a Triton checkout"; exit 2; }
	$(PIP) install --quiet --constraint constraints/locked.txt matplotlib pandas tabulate llnl-hatchet
	$(BIN)/python tools/run_tutorials.py $(TUTORIALS)

test-libraries: $(VENV)/torch.stamp ## compare the kernels of published libraries, checked, with their definitions
	$(PIP) install --quiet --no-deps liger-kernel==0.8.5 flash-linear-attention==0.6.0 fla-core==0.6.0 einops
	$(BIN)/kernbench torchrun --check --nproc-per-node 1 tests/libraries/program.py $(ARGS)
	$(PIP) install --quiet --no-deps transformer_engine==2.20.2
	$(PIP) install --quiet onnxscript pydantic einops
	$(BIN)/kernbench torchrun --machine h100-sxm --nproc-per-node 1 tests/libraries/engine_layers.py
	$(PIP) install --quiet --no-deps helion==1.5.1 scikit-learn joblib threadpoolctl cloudpickle
	$(BIN)/python -m pytest -q -rs tests/torch_bridge/front/test_helion_kernels.py

test-engines: $(VENV)/dev.stamp ## run sweeps on Dask and Ray, with workers killed, and searches with Optuna
	$(PIP) install --quiet --constraint constraints/locked.txt --editable ".[dask,plots,ray,search]"
	$(BIN)/python -m pytest -q -rs tests/cli/sweeps

test-models: $(VENV)/torch.stamp ## compare small models of Hugging Face's transformers with the CPU: ARGS="llama bert"
	$(PIP) install --quiet --constraint constraints/locked.txt transformers==5.23.0
	$(BIN)/kernbench torchrun tests/libraries/models.py $(ARGS)

test-serving: $(VENV)/torch.stamp ## serve a small model with nano-vllm, and compare its tokens: NANO_VLLM=clone
	@test -d "$(NANO_VLLM)" || { echo "set NANO_VLLM to a checkout of GeeeekExplorer/nano-vllm"; exit 2; }
	$(PIP) install --quiet --constraint constraints/locked.txt transformers==5.23.0 xxhash
	$(BIN)/python tools/serving_runs.py $(NANO_VLLM) $(ARGS)

test-vllm: $(VENV)/torch.stamp ## serve a small model with vLLM's wheel as it is, and compare its tokens: needs it and its Python requirements installed
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(0 if u.find_spec("vllm") else "install vllm (--no-deps) and its Python requirements into $(VENV) first: docs/serving.md")'
	$(BIN)/python tools/serving_runs.py vllm --tensor-parallel 1 $(ARGS)

test-titan: $(VENV)/torch.stamp ## train torchtitan's small models, sharded in five ways: TITAN=clone at v0.2.2
	@test -d "$(TITAN)" || { echo "set TITAN to a checkout of torchtitan at v0.2.2"; exit 2; }
	$(PIP) install --quiet --constraint constraints/locked.txt torchdata==0.11.0 "datasets>=4.8" tokenizers tyro tensorboard wandb einops pillow safetensors
	$(BIN)/python tools/titan_runs.py $(TITAN) $(ARGS)

test-field: $(VENV)/torch.stamp ## run programs and mistakes of kernbench's users: ARGS="libraries pinned" for some
	$(PIP) install --quiet --constraint constraints/locked.txt hydra-core
	$(PIP) install --quiet --constraint constraints/locked.txt transformers==5.23.0 peft==0.21.2 trl==1.16.0 lightning==2.6.6 diffusers==0.42.1
	DS_BUILD_OPS=0 $(PIP) install --quiet --constraint constraints/locked.txt --no-build-isolation deepspeed || echo "deepspeed is not installed"
	$(BIN)/python tests/field/run.py $(ARGS)

test-operations: $(VENV)/torch.stamp ## compare PyTorch's operations on a device and on the CPU: ARGS=40 for one in 40, ARGS="1 graphs" as graphs
	$(BIN)/kernbench torchrun tests/torch_bridge/programs/operations.py $(ARGS)

judge-truth: $(VENV)/torch.stamp ## judge a benchmark's own kernels, all of them right: CLONE=KernelBench or TritonBench [ARGS="--every 6"]
	@test -d "$(CLONE)" || { echo "set CLONE to a clone of KernelBench or TritonBench"; exit 2; }
	$(BIN)/python tools/judge_truth.py $(CLONE) $(ARGS)

judge-mutants: $(VENV)/torch.stamp ## judge kernels with planted mistakes: PAIRS="softmax.py=softmax_task.py ..." [ARGS="--most 10"]
	@test -n "$(PAIRS)" || { echo 'name candidates and tasks: make judge-mutants PAIRS="softmax.py=softmax_task.py"'; exit 2; }
	$(BIN)/python tools/judge_mutants.py $(PAIRS) $(ARGS)

judge-soak: $(VENV)/torch.stamp ## judge many candidates, a tenth of them hostile: ARGS="--count 5000"
	$(BIN)/python -m tests.judging.soak $(ARGS)

fuzz-kernels: $(VENV)/dev.stamp ## compare random kernels with numpy: ARGS="--first SEED --count N --check"
	$(BIN)/python -m tests.integration.random_kernels $(ARGS)

fuzz-mistakes: $(VENV)/dev.stamp ## plant mistakes in random kernels that --check must find: ARGS="--first SEED --count N KIND"
	$(BIN)/python -m tests.integration.planted_mistakes $(ARGS)

fuzz-properties: $(VENV)/torch.stamp ## try the tests' properties on other examples: SEEDS="1 2 3"
	@test -n "$(SEEDS)" || { echo 'name the seeds: make fuzz-properties SEEDS="1 2 3"'; exit 2; }
	failed=; for seed in $(SEEDS); do $(BIN)/python -m pytest -n 2 -q -m hypothesis --hypothesis-seed=$$seed || failed="$$failed $$seed"; done; test -z "$$failed" || { echo "seeds that found something:$$failed"; exit 1; }

fuzz-saved: $(VENV)/dev.stamp ## damage a saved run at random, and read it by every command: ARGS="--first SEED --count N"
	@mkdir -p out && $(BIN)/kernbench run --no-data --save out/fuzzed.run tp_mlp >/dev/null 2>&1
	$(BIN)/python -m tests.saved.damaging out/fuzzed.run $(ARGS)
	$(BIN)/python -m tests.saved.bombs out/fuzzed.run

changelog: $(VENV)/dev.stamp ## put the files of changelog.d under a release in CHANGELOG.md: VERSION=0.2.0
	@test -n "$(VERSION)" || { echo 'name the release: make changelog VERSION=0.2.0'; exit 2; }
	$(BIN)/towncrier build --yes --version $(VERSION)

release: $(VENV)/release.stamp ## build and check wheel and sdist in dist/, on each Python on PATH: ARGS=--tag tags the commit
	$(BIN)/python tools/release.py $(ARGS)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"kernbench needs Python 3.11 or newer, but $(PYTHON) is {sys.version.split()[0]}; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/run.stamp: pyproject.toml constraints/locked.txt | $(VENV)/pip.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --editable .
	@touch $@

$(VENV)/validation.stamp: validation/pyproject.toml | $(VENV)/run.stamp
	$(PIP) install --quiet --no-deps --editable validation
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp $(VENV)/validation.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --group dev
	@touch $@

$(VENV)/docs.stamp: $(VENV)/run.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --group docs
	@touch $@

$(VENV)/release.stamp: $(VENV)/run.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --group release
	@touch $@

# Holistic Trace Analysis asks for JupyterLab, which it needs for its pictures only.
$(VENV)/readers.stamp: $(VENV)/dev.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --group readers
	$(PIP) install --quiet --no-deps HolisticTraceAnalysis==0.5.0
	@touch $@

$(VENV)/torch.stamp: $(VENV)/dev.stamp
	$(PIP) install --quiet --constraint constraints/locked.txt --group torch
	@touch $@
