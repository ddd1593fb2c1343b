# Everything runs in .venv, which is made, or brought up to requirements.lock, when a target needs it.
PROFILE ?= laptop
ARGS ?=

PYTHON := .venv/bin/python
STAMP := .venv/installed
LLM_STAMP := .venv-llm/installed
EXTRAS_STAMP := .venv-extras/installed
NOTEBOOKS := $(sort $(basename $(notdir $(wildcard notebooks/*.ipynb))))
# `make -j2 reproduce` runs two notebooks at a time.
JOBS = $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),1)
# Two tests at a time with one thread each, the long ones spread over both.
TEST := OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist worksteal
CHECKED := $(addprefix tests/test_,$(addsuffix .py,core critic draws width datasets longmemeval toy download paths))
define STYLE
$(PYTHON) -m ruff check .
$(PYTHON) -m ruff format --check .
endef

.PHONY: help reproduce extensions estimate test check test-processors llm test-llm test-integrations data report lab bench lock clean $(NOTEBOOKS)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26
	@echo "one notebook again, with parameters of your own (into a file beside the first):"
	@for name in $(NOTEBOOKS); do echo "  make $$name"; done
	@echo '  e.g. make fig05_noise_robustness ARGS="-p precision 70"'

reproduce: $(STAMP) ## run every notebook of the paper into results/PROFILE (PROFILE=laptop)
	$(PYTHON) -m earlib.run reproduction --profile $(PROFILE) --jobs $(JOBS) $(ARGS)

extensions: $(STAMP) ## run the notebooks that go beyond the paper into results/PROFILE
	$(PYTHON) -m earlib.run extensions --profile $(PROFILE) --jobs $(JOBS) $(ARGS)

$(NOTEBOOKS): $(STAMP)
	$(PYTHON) -m earlib.run $@ --profile $(PROFILE) $(ARGS)

estimate: $(STAMP) ## say what the language models of PROFILE would cost; asks nothing
	$(PYTHON) -m earlib.run all --profile $(PROFILE) --estimate $(ARGS)

llm: $(STAMP) $(LLM_STAMP) ## build a server for language models on this machine, and try it
	$(PYTHON) -m earlib.llm.local $(ARGS)

test-llm: $(STAMP) $(LLM_STAMP) ## the tests that ask a language model on this machine
	EARLIB_TEST_LLM=1 $(PYTHON) -m pytest -m llm $(ARGS)

test-integrations: $(STAMP) $(EXTRAS_STAMP) ## the tests against LangChain and LlamaIndex
	EARLIB_TEST_INTEGRATIONS=1 PYTHONPATH=.venv-extras $(PYTHON) -m pytest tests/test_integrations.py $(ARGS)

test: $(STAMP) ## check style, run the tests, and run the committed notebooks again
	$(STYLE)
	$(TEST) $(ARGS)

check: $(STAMP) ## in a minute: style, contracts, types, the tests of the core and of the loaders
	$(STYLE)
	.venv/bin/lint-imports --no-cache
	$(PYTHON) -m mypy
	$(TEST) $(CHECKED) $(ARGS)

test-processors: $(STAMP) ## the committed notebooks once more under every setting of processor and matrix library
	EARLIB_TEST_PROCESSORS=1 $(TEST) tests/test_notebooks.py -k processor $(ARGS)

data: $(STAMP) ## fetch the publishers' data and check it
	$(PYTHON) -m earlib.data.download

report: $(STAMP) ## write results/PROFILE/index.html, to read; of laptop also the README's tables
	$(PYTHON) -m earlib.harness.pages --profile $(PROFILE)
	$(if $(filter laptop,$(PROFILE)),$(PYTHON) -m earlib.harness.tables readme)

lab: $(STAMP) ## open the notebooks in JupyterLab; what they write goes to build/lab, not to results
	EARLIB_RESULTS="$(CURDIR)/build/lab" $(PYTHON) -m jupyterlab notebooks

bench: $(STAMP) ## time the batched core against the plain transcription, two workers against one process
	$(PYTHON) tests/bench.py $(ARGS)

lock: $(STAMP) ## write the versions in .venv to requirements.lock
	$(PYTHON) -m pip freeze --all --exclude pip --exclude earlib > .venv/frozen
	(sed -n '/^#/p' requirements.lock; sed 's/+.*//' .venv/frozen) > .venv/lock && mv .venv/lock requirements.lock

clean: ## remove what can be made again, except environments and results
	rm -rf build cache earlib.egg-info .pytest_cache .ruff_cache .mypy_cache
	find earlib tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp goes first and comes back last, so that an install that failed is never taken for a whole one.
$(STAMP): requirements.lock pyproject.toml
	@rm -f $@
	@fits='import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))'; \
	if ! $(PYTHON) -c "$$fits" 2>/dev/null; then \
	    for python in python3.11 python3 python ''; do $$python -c "$$fits" 2>/dev/null && break; done; \
	    if [ -z "$$python" ]; then \
	        echo "earlib needs Python 3.11, but none of python3.11, python3 and python is one: install it" >&2; exit 1; \
	    fi; \
	    $$python -m venv --clear .venv; \
	fi
	$(PYTHON) -m pip install --requirement requirements.lock
	$(PYTHON) -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

# In an environment of its own: it is built from source, which takes minutes, and brings a web server.
$(LLM_STAMP): requirements-llm.lock $(STAMP)
	@rm -f $@
	$(PYTHON) -m venv --clear .venv-llm
	.venv-llm/bin/python -m pip install --requirement requirements-llm.lock
	@touch $@

# Beside the environment, not in it: these bring forty packages that nothing else needs.
$(EXTRAS_STAMP): requirements-extras.lock $(STAMP)
	@rm -rf .venv-extras
	$(PYTHON) -m pip install --no-deps --target .venv-extras --requirement requirements-extras.lock
	@touch $@
