# Two commands from a fresh clone: `make demo` and `make test`. Both may be repeated.
# Settings: PYTHON=python3.12  VENV=.venv  ZIG=1 (no C++ compiler)  TORCH_INDEX=URL  PROMPT="..."
# `make clients` is clients-sdks and clients-agents. RECORD=1 writes tests/data/clients anew;
# clients-sdks: MODEL=smollm2 (or a GGUF file), WITH=open-webui (3 GB, minutes); each: ONLY="NAME ..."
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PROMPT ?= What is the capital of France?
MODEL ?= smollm2
CLIENTS_VENV ?= .venv-clients
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q -q
NATIVE := build/native
SOURCES := $(shell find ftman ftengine native registry modelfiles -type f -not -name '*.pyc' 2>/dev/null)
export PIP_NO_INPUT := 1
ifdef ZIG
export CC := $(CURDIR)/$(VENV)/bin/zig-cc
export CXX := $(CURDIR)/$(VENV)/bin/zig-c++
endif

.PHONY: demo test test-all check native clients clients-sdks clients-agents clean help
help:
	@echo "make demo      install everything and let a small mixture-of-experts model answer"
	@echo "make test      the whole suite in its short form"
	@echo "make test-all  the long forms too"
	@echo "make native    build the C++ kernels for this checkout"
	@echo "make clients   SDKs, frameworks and agents, unpatched, against this checkout (network)"

demo: $(VENV)/.installed
	@$(VENV)/bin/python tests/demo.py "$(VENV)/bin/ft" "$(PROMPT)"

test: $(VENV)/.test-deps $(NATIVE)/.built
	@PYTHONPATH="$(CURDIR)" $(PY) -m tests.check

test-all: $(VENV)/.test-deps $(NATIVE)/.built
	@PYTHONPATH="$(CURDIR)" $(PY) -m tests.check --all

check: test

native: $(VENV)/.test-deps $(NATIVE)/.built

clients: clients-sdks clients-agents

clients-sdks: $(VENV)/.test-deps $(NATIVE)/.built
	@PYTHONPATH="$(CURDIR)" $(PY) -m tests.clients.run --python "$(CLIENTS_VENV)" --model "$(MODEL)" \
	  $(if $(RECORD),--record) $(if $(ONLY),--only $(ONLY)) $(if $(WITH),--with $(WITH))

clients-agents: $(VENV)/.test-deps
	@PYTHONPATH="$(CURDIR)" $(PY) -m tests.clients.agents.run $(if $(RECORD),--record) \
	  $(if $(ONLY),--only $(ONLY))

$(VENV)/.ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "ft needs Python 3.10 or newer; '$(PYTHON)' is not that."; \
	  echo "  Install it (Debian: apt install python3 python3-venv) or say: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing."; \
	  echo "  Install it (Debian: apt install python3-venv), then run this again."; exit 1; }
	@if [ -z "$(ZIG)" ] && ! { command -v c++ || command -v g++ || command -v clang++; } >/dev/null; then \
	  echo "No C++ compiler was found; ft needs one with C++20 to build its CPU kernels."; \
	  echo "  Install one (Debian: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install),"; \
	  echo "  or let pip bring one: make $(or $(MAKECMDGOALS),demo) ZIG=1"; exit 1; fi
	@echo "ft: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@if [ -n "$(ZIG)" ]; then $(PIP) install ziglang && \
	  printf '#!/bin/sh\nexec "%s" -I -m ziglang cc "$$@"\n' "$(CURDIR)/$(PY)" > $(VENV)/bin/zig-cc && \
	  printf '#!/bin/sh\nexec "%s" -I -m ziglang c++ "$$@"\n' "$(CURDIR)/$(PY)" > $(VENV)/bin/zig-c++ && \
	  chmod +x $(VENV)/bin/zig-cc $(VENV)/bin/zig-c++; fi
	@touch $@

# PyTorch is most of the download. With an NVIDIA GPU the default wheel is right; without one the CPU
# build is much smaller.
$(VENV)/.torch: $(VENV)/.ready
	@if command -v nvidia-smi >/dev/null; then \
	  echo "ft: installing PyTorch for the GPU (about 3 GB)"; $(PIP) install -c constraints.txt "$(TORCH)"; \
	else \
	  echo "ft: installing PyTorch, CPU build (about 200 MB)"; \
	  $(PIP) install -c constraints.txt --no-index --no-deps "$(TORCH)" 2>/dev/null \
	  || $(PIP) install --no-deps --index-url "$(TORCH_INDEX)" "$(TORCH)" 2>/dev/null \
	  || { echo "ft: no CPU build could be had; installing the default one (about 3 GB)"; \
	       $(PIP) install -c constraints.txt "$(TORCH)"; }; \
	fi
	@touch $@

$(VENV)/.installed: $(VENV)/.torch constraints.txt pyproject.toml $(SOURCES)
	@echo "ft: building the CPU kernels and installing ft into $(VENV)"
	@$(PIP) install -c constraints.txt .
	@touch $@

$(VENV)/.test-deps: $(VENV)/.torch constraints.txt pyproject.toml
	@echo "ft: installing the test tools"
	@$(PY) tests/requirements.py > $(VENV)/requirements.txt
	@$(PIP) install -c constraints.txt -r $(VENV)/requirements.txt
	@touch $@

$(NATIVE)/.built: $(VENV)/.test-deps $(shell find native -type f 2>/dev/null)
	@echo "ft: building the CPU kernels into $(NATIVE)"; mkdir -p build
	@$(VENV)/bin/cmake -S native -B $(NATIVE) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
	  -DCMAKE_BUILD_TYPE=Release $(if $(CI),-DFT_WERROR=ON) > $(NATIVE).log 2>&1 \
	  && $(VENV)/bin/cmake --build $(NATIVE) >> $(NATIVE).log 2>&1 \
	  || { tail -40 $(NATIVE).log; echo "The build failed; the whole log is $(NATIVE).log"; exit 1; }
	@touch $@

clean:
	rm -rf build dist $(VENV) $(CLIENTS_VENV)
