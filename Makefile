# `make` lists the targets. Everything is installed into $(VENV); nothing else on the machine is touched.
PYTHON ?= python3
VENV ?= .venv
VARIANT ?= cpu
# Processes that share the tests. Each of them compiles kernels and takes a few GB.
TEST_PROCESSES ?= 2
LIBRARY ?= build/editable/libaoext.so
# What `make demo` and `make whole-model` measure, such as cuda; the demo chooses where it is not said.
DEVICE ?=
# Choices about $(VENV), which hold until another is made (tools/environment.py): what pip installs as torch, and
# whether the library gets kernels for GPUs (AUTO, ON or OFF) and for which NVIDIA GPUs (ALL, or 80;90).
export TORCH AOEXT_CUDA AOEXT_CUDA_ARCHITECTURES AOEXT_SYCL
BIN := $(VENV)/bin
# The NVIDIA GPUs of a wheel, all of them where none are named, such as 80;90.
CAPABILITIES ?=
capabilities = $(if $(CAPABILITIES),--capabilities '$(CAPABILITIES)')
# Builds may not use more cores than there are; scikit-build-core reads this.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)

.DEFAULT_GOAL := help
.PHONY: help tools install demo bench whole-model test test-inductor-xpu test-oldest test-wheel wheel-aarch64 test-aarch64 wheel-windows test-windows check-macos check-cuda docs sanitize cuda-sanitize wheel check-libsycl isa isa-inductor arm-loops ptxas lint format clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 19

# Targets share $(VENV) and build/.
.NOTPARALLEL:

$(VENV)/.pip:
	@echo "== a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --upgrade pip
	@touch $@

setup = @$(BIN)/python tools/environment.py

tools: $(VENV)/.pip
	$(setup) tools

install: $(VENV)/.pip ## Set up $(VENV) with an editable aoext and the developers' tools
	$(setup) develop

demo: $(VENV)/.pip ## Quantise a small language model with every scheme and show what it costs and saves
	$(setup) demo
	$(BIN)/aoext demo --output-dir out $(if $(DEVICE),--device $(DEVICE))

bench: install ## Time every operator against bfloat16 and torch's own quantised operators
	$(BIN)/aoext bench

whole-model: install ## Decode with transformers' Llama in every scheme, and torchao's, on DEVICE (cpu or cuda)
	$(BIN)/python benchmarks/whole_model.py --device $(or $(DEVICE),cpu)

test: $(VENV)/.pip ## Run all tests on the devices at hand and on a simulated XPU, whose own tests come first
	$(setup) test
	$(BIN)/python -m pytest xpu_sim
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal --reruns 1

# Files whose tests compile on xpu, where the interpreter makes Inductor possible.
INDUCTOR_TESTS := $(addprefix tests/test_,$(addsuffix .py,inductor_xpu inductor_compile))

test-inductor-xpu: $(VENV)/.pip ## Run torch.compile's tests for Intel GPUs, Inductor's kernels by Triton's interpreter
	$(setup) test-inductor-xpu
	PYTHONPATH=$(abspath $(VENV))/triton AOEXT_REQUIRE_DEVICES=inductor-xpu $(BIN)/python -m pytest -k xpu $(INDUCTOR_TESTS)

wheel: tools ## Build dist/*.whl for VARIANT (cpu, cu130 or xpu) and check it in a clean environment
	$(BIN)/python tools/wheel.py build $(VARIANT) $(capabilities)

test-wheel: tools ## Test the wheel of VARIANT in dist/ on DEVICE, with TORCH
	$(BIN)/python tools/wheel.py test $(VARIANT) --device $(or $(DEVICE),cpu)

wheel-aarch64: tools ## Build dist/*aarch64.whl for CPUs by cross compilation, and check it
	$(BIN)/python tools/cross.py wheel aarch64

test-aarch64: wheel-aarch64 ## Test that wheel under qemu with each instruction set: a share of the operators' tests, or TESTS=all
	$(BIN)/python tools/cross.py test aarch64 --tests $(or $(TESTS),share)

wheel-windows: tools ## Build dist/*win_amd64.whl for CPUs by cross compilation, and check it
	$(BIN)/python tools/cross.py wheel windows

test-windows: wheel-windows ## Test that wheel under Wine with each instruction set: a share of the operators' tests, or TESTS=all
	$(BIN)/python tools/cross.py test windows --tests $(or $(TESTS),share)

check-macos: tools ## Compile and link the library for macOS on Apple's processors; nothing here runs it
	$(BIN)/python tools/macos.py

check-cuda: tools ## Look for errors in the sources for NVIDIA GPUs by nvcc, which generates no code
	bash tools/check_cuda.sh $(BIN)/python

docs: install ## Build the documents as a site in out/site, links checked
	$(BIN)/python tools/site.py

test-oldest: tools ## Run the operator tests and gradients from the wheel under the oldest torch, 2.10
	$(BIN)/python tools/wheel.py build cpu --torch torch==2.10.0

sanitize: install ## Run the operator tests under AddressSanitizer and UBSan
	bash tools/sanitize.sh $(BIN)/python

cuda-sanitize: install ## Run every CUDA kernel under compute-sanitizer, on an NVIDIA GPU
	$(BIN)/python tools/cuda_sanitizer.py

check-libsycl: tools ## Compile the host code for Intel GPUs against libsycl 8, of torch 2.11 and 2.12
	bash tools/libsycl8.sh $(BIN)/python

isa: install ## Compile the XPU kernels for Intel GPUs, look for spills and lost matrix products, predict their speed
	$(BIN)/python tools/isa build/editable/spirv

isa-inductor: $(VENV)/.pip ## Compile Inductor's kernels around our operators for Intel GPUs, with Intel's Triton
	$(setup) isa-inductor
	$(BIN)/python tools/isa/inductor.py

arm-loops: tools ## Count what the inner loops of the Arm kernels cost a weight in FOLDER, a build for aarch64
	$(BIN)/python tools/arm_loops.py $(or $(FOLDER),build/py3-none-linux_aarch64-cpu)

ptxas: tools ## Fail on CUDA kernels that spill in LIBRARY (a library or a wheel), and on LATER GPUs, by their PTX
	$(BIN)/python tools/ptxas.py $(LIBRARY) $(if $(LATER),--later $(LATER)) $(capabilities)

lint: install ## Check formatting, style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')
	$(BIN)/actionlint
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: tools ## Format all sources
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

clean: ## Remove everything that was built
	rm -rf build dist out
	if [ -e "$(VENV)/.pip" ]; then rm -rf "$(VENV)"; fi
