# Everything runs in VENV, which is made, or brought up to requirements.lock, when a target needs it: by uv where that is
# installed, else by pip. VENV=active is the environment of the shell. Read by GNU make from 3.81 on.
PROFILE ?= laptop
ARGS ?=
override VENV := $(or $(strip $(VENV)),.venv)
# The first of these that fits makes VENV; all of them gave the committed numbers (3.14 was never run).
INTERPRETER ?= python3 python python3.11 python3.12 python3.13 python3.14

UV := $(shell command -v uv 2>/dev/null)
# Of conda's environments only base holds a folder condabin.
ACTIVE := $(or $(VIRTUAL_ENV),$(if $(wildcard $(CONDA_PREFIX)/condabin),,$(CONDA_PREFIX)))
ifeq ($(VENV)$(ACTIVE),active)
$(error VENV=active: no environment is active but conda's base at most, which is left alone; activate another one, \
or leave VENV out)
endif
PREFIX := $(if $(filter active,$(VENV)),$(ACTIVE),$(VENV))
ifneq ($(words $(PREFIX)),1)
$(error VENV: expected one path without blanks, got "$(PREFIX)")
endif
PYTHON := $(PREFIX)/bin/python
STAMP := $(PREFIX)/installed
INSTALL := $(if $(UV),$(UV) pip install --python $(PYTHON),$(PYTHON) -m pip install)
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

.PHONY: help reproduce extensions records estimate test check test-core test-pythons test-processors rehearse llm test-llm test-integrations data report lab kernel bench lock clean clean-cache FORCE $(NOTEBOOKS)

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

# Claims of either laptop read the records of both.
records: $(STAMP) ## for maintainers: rewrite the committed records of all profiles from this commit (hours), and the README
	@test -z "$$(git status --porcelain -- earlib notebooks)" || \
	{ echo "earlib/ or notebooks/ holds changes that no commit has: commit them first" >&2; exit 1; }
	$(foreach profile,smoke laptop-large laptop,$(PYTHON) -m earlib.run all --profile $(profile) --jobs $(JOBS) --rewrite &&) \
	$(PYTHON) -m earlib.run claims --profile laptop-large --rewrite
	$(PYTHON) -m earlib.harness.readme

estimate: $(STAMP) ## say what the language models of PROFILE would cost; asks nothing
	$(PYTHON) -m earlib.run all --profile $(PROFILE) --estimate $(ARGS)

llm: $(STAMP) $(LLM_STAMP) ## build a server for language models on this machine, and try it
	$(PYTHON) -m earlib.llm.local $(ARGS)

test-llm: $(STAMP) $(LLM_STAMP) ## the tests that ask a language model on this machine
	EARLIB_TEST_LLM=1 $(PYTHON) -m pytest -m llm $(ARGS)

test-integrations: $(STAMP) $(EXTRAS_STAMP) ## the tests against LangChain, LlamaIndex and the Model Context Protocol
	EARLIB_TEST_INTEGRATIONS=1 PYTHONPATH=.venv-extras $(PYTHON) -m pytest tests/test_integrations.py $(ARGS)

test: $(STAMP) ## check style, run the tests, and run the committed notebooks again
	$(STYLE)
	$(TEST) $(ARGS)

check: $(STAMP) ## in a minute: style, contracts, types, the tests of the core and of the loaders
	$(STYLE)
	$(PREFIX)/bin/lint-imports --no-cache
	$(PYTHON) -m mypy
	$(TEST) $(CHECKED) $(ARGS)

test-core: $(STAMP) ## the tests of the core and of the loaders alone
	$(TEST) $(CHECKED) $(ARGS)

test-pythons: $(STAMP) ## these on every other supported Python of this machine, each in an environment of its own
	$(PYTHON) tests/pythons.py

test-processors: $(STAMP) ## the committed notebooks once more under every setting of processor and matrix library
	EARLIB_TEST_PROCESSORS=1 $(TEST) tests/test_notebooks.py -k processor $(ARGS)

rehearse: $(STAMP) ## the profile paper on stand-ins, on a CPU in a quarter of an hour (ARGS=--full: true sizes, on a GPU)
	$(PYTHON) tests/rehearse.py $(ARGS)

data: $(STAMP) ## fetch the publishers' data and check it
	$(PYTHON) -m earlib.data.download

report: $(STAMP) ## write results/PROFILE/index.html, to read; of laptop also the README's tables
	$(PYTHON) -m earlib.harness.pages --profile $(PROFILE)
	$(if $(filter laptop,$(PROFILE)),$(PYTHON) -m earlib.harness.readme)

lab: $(STAMP) ## open JupyterLab on a list of the notebooks; what they save goes to build/by-hand, not to results
	$(PYTHON) -m jupyterlab start.ipynb $(ARGS)

kernel: $(STAMP) ## add the kernel "earlib" to one's own Jupyter or VS Code, and say where
	$(PYTHON) -m ipykernel install --user --name earlib --display-name earlib $(ARGS)

bench: $(STAMP) ## time the batched core against the plain transcription, two workers against one process
	$(PYTHON) tests/bench.py $(ARGS)

# Without the CUDA packages of torch: the builds that need them bring them, the others would gain gigabytes.
lock: ## resolve requirements.lock again for every supported Python and system (needs uv; keeps what still fits)
	@test -n "$(UV)" || { echo "make lock needs uv: pip install uv, in an environment of its own" >&2; exit 1; }
	@mkdir -p build && cp requirements.lock build/resolved.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header --extra paper --extra test pyproject.toml --output-file build/resolved.lock
	(sed -n '/^#/p' requirements.lock; sed '/^cuda-/d; /^nvidia-/d; /^triton=/d; /^#/d' build/resolved.lock) > build/requirements.lock
	mv build/requirements.lock requirements.lock

# Embeddings and scores of rerankers take hours on a CPU, and replies of language models are paid for.
clean: ## remove what is made again in minutes; keeps environments, results, embeddings and replies
	rm -rf build earlib.egg-info .pytest_cache .ruff_cache .mypy_cache
	find earlib tests -name __pycache__ -type d -prune -exec rm -rf {} +
	test ! -d cache || find cache -mindepth 1 -maxdepth 1 ! -name embeddings ! -name scores ! -name llm -exec rm -rf {} +

clean-cache: ## remove all of cache/, also what took hours (embeddings) or was paid for (replies), and say how large it was
	@test ! -d cache || du -h -d 1 cache
	rm -rf cache

# The stamp goes first and comes back last, so that an install that failed is never taken for a whole one.
$(STAMP): requirements.lock pyproject.toml
	@rm -f $@
	@supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'; \
	if ! $(PYTHON) -c "$$supported$(if $(UV),,; import pip)" 2>/dev/null; then \
	    if [ $(VENV) = active ]; then \
	        echo "earlib needs Python 3.11 to 3.14, and pip or uv, but $(PYTHON) has not" >&2; exit 1; \
	    fi; \
	    if [ $(VENV) != .venv ] && [ -n "$$(ls -A $(VENV) 2>/dev/null)" ]; then \
	        echo "VENV=$(VENV) holds files, and no Python 3.11 to 3.14 with pip or uv: left as it is; name a new folder" >&2; exit 1; \
	    fi; \
	    for python in $(INTERPRETER) ''; do \
	        $$python -c "$$supported$(if $(UV),,; import ensurepip)" 2>/dev/null && break; \
	    done; \
	    if [ -z "$$python" ]; then \
	        echo "earlib needs Python 3.11 to 3.14 with venv, and none of these is one: $(INTERPRETER)." >&2; \
	        echo "Get one by \`uv python install 3.13\`, \`pyenv install 3.13\` or \`conda create -n earlib python=3.13\`" >&2; \
	        echo "(on Debian and Ubuntu venv is the package python3-venv), then make INTERPRETER=its-path" >&2; exit 1; \
	    fi; \
	    $(if $(UV),$(UV) venv --quiet --clear --python "$$(command -v $$python)",$$python -m venv --clear) $(VENV); \
	fi
	@echo "installing what requirements.lock names into $(PREFIX): some minutes, once"
	$(INSTALL) --requirement requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
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
	$(INSTALL) --no-deps --target .venv-extras --requirement requirements-extras.lock
	@touch $@

# Anything else is for the runner, which knows the notebooks and names those with a similar name.
%: $(STAMP) FORCE
	@$(PYTHON) -m earlib.run '$@' --profile $(PROFILE) $(ARGS) || { echo "(\`make help\` lists the targets)" >&2; exit 2; }

# Not these, which make tries to bring up to date first.
Makefile requirements.lock requirements-llm.lock requirements-extras.lock pyproject.toml: ;
