# `make` lists the targets. Everything is installed into $(VENV); nothing else on the machine is touched.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
VARIANT ?= cpu
# Whether $(VENV)'s library gets kernels for NVIDIA GPUs: AUTO where nvcc is found, ON or OFF. They take minutes.
AOEXT_CUDA ?= AUTO
# Processes that share the tests. Each of them compiles kernels and takes a few GB.
TEST_PROCESSES ?= 2
# What `make whole-model` measures.
DEVICE ?= cpu
LIBRARY ?= build/editable/libaoext.so
BIN := $(VENV)/bin
SOURCES := $(shell find csrc cmake tools -type f) CMakeLists.txt pyproject.toml VERSION
SIMULATOR := $(shell find tests/xpu_sim -type f -not -name '*.pyc' -not -path 'tests/xpu_sim/tests/*')
# Builds may not use more cores than there are; scikit-build-core reads this.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.DEFAULT_GOAL := help
.PHONY: help install demo bench whole-model test test-oldest sanitize cuda-sanitize wheel check-libsycl isa ptxas lint format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

# Tools and torch first, so that the library builds against the very torch that runs it.
$(VENV)/.tools: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/python tools/requirements.py dev > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --requirement $(VENV)/requirements.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(SOURCES)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --config-settings=cmake.define.AOEXT_CUDA=$(AOEXT_CUDA) --editable .
	@touch $@

# The tests' XPU tensors on a machine without an Intel GPU, where they can be compiled.
$(VENV)/.simulator: $(VENV)/.tools $(SIMULATOR)
	@if [ "$$(uname -m)" != x86_64 ] || [ ! -e "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then \
	  echo "no simulated XPU: it needs x86-64 and Python's headers (python3-dev)"; \
	else \
	  $(BIN)/pip install --quiet --no-build-isolation --no-deps --config-settings=build-dir=$(CURDIR)/build/xpu_sim-{wheel_tag} ./tests/xpu_sim; \
	fi
	@touch $@

install: $(VENV)/.installed ## Set up $(VENV) with an editable aoext

demo: install ## Quantise a small language model with every scheme and show what it costs and saves
	$(BIN)/aoext demo --output-dir out

bench: install ## Time every operator against bfloat16 and torch's own quantised operators
	$(BIN)/aoext bench

whole-model: install ## Decode with transformers' Llama in every scheme, and torchao's, on DEVICE (cpu or cuda)
	$(BIN)/python benchmarks/whole_model.py --device $(DEVICE)

test: install $(VENV)/.simulator ## Run all tests on the devices at hand and on a simulated XPU
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal

wheel: $(VENV)/.tools ## Build dist/*.whl for VARIANT (cpu, cu130 or xpu) and check it in a clean environment
	$(BIN)/python tools/wheel.py build $(VARIANT) --torch $(TORCH)

test-oldest: $(VENV)/.tools ## Run the operator tests from the wheel under the oldest torch, 2.10
	$(BIN)/python tools/wheel.py build cpu --torch torch==2.10.0

sanitize: install ## Run the operator tests under AddressSanitizer and UBSan
	bash tools/sanitize.sh $(BIN)/python

cuda-sanitize: install ## Run every CUDA kernel under compute-sanitizer, on an NVIDIA GPU
	$(BIN)/python tools/cuda_sanitizer.py

check-libsycl: $(VENV)/.tools ## Compile the host code for Intel GPUs against libsycl 8, of torch 2.11 and 2.12
	bash tools/libsycl8.sh $(BIN)/python

isa: install ## Compile the XPU kernels for Intel GPUs, look for spills and lost matrix products, predict their speed
	$(BIN)/python tools/isa build/editable/spirv

ptxas: $(VENV)/.tools ## Fail on CUDA kernels that spill in LIBRARY (a library or a wheel)
	$(BIN)/python tools/ptxas.py $(LIBRARY)

lint: install ## Check formatting, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

format: $(VENV)/.tools ## Format all sources
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

clean: ## Remove everything that was built
	rm -rf build dist out $(VENV)
