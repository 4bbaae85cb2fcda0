#!/usr/bin/env bash
# Builds the library with AddressSanitizer and UndefinedBehaviorSanitizer and runs the operator tests with
# every instruction set that this machine has. The sanitizers' runtimes must come first in the process:
# Python itself is not built with them. The kernels for Intel GPUs stay out (AOEXT_SYCL=OFF): libsycl and the OpenCL
# compiler behind it do not run below AddressSanitizer, and the simulator finds stray accesses by guard pages.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."

AOEXT_SANITIZE=address,undefined
build=build/sanitize
"$(dirname "$python")/cmake" -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DPython_EXECUTABLE="$python" \
  -DAOEXT_CUDA=OFF -DAOEXT_SYCL=OFF -DAOEXT_SANITIZE=$AOEXT_SANITIZE -DSKBUILD_PROJECT_VERSION_FULL=sanitize >/dev/null
"$(dirname "$python")/cmake" --build $build

export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export AOEXT_SANITIZE  # tests/test_int4pack_shim.py compiles its program with it
export AOEXT_LIBRARY=$PWD/$build/libaoext.so AOEXT_SIMULATE_XPU=0

"$python" -c "import aoext, pathlib, sys; sys.exit('$AOEXT_LIBRARY' not in pathlib.Path('/proc/self/maps').read_text())"
usable=$("$python" -c "from aoext.library.info import build_config; print(build_config()['usable here'].replace(',', ''))")
tests="tests/test_operators.py tests/test_grouped.py tests/test_bad_input.py tests/test_int4pack_shim.py"
select="not 2_31 and not another_instruction_set"
for isa in $usable; do
  echo "sanitizers, $isa"
  AOEXT_CPU_ISA=$isa "$python" -m pytest -q --capture=sys -p no:cacheprovider $tests -k "$select"
  tests=tests/test_operators.py select="own and not 2_31"  # the rest is the same code whatever the instruction set
done
# A case whose result is huge is to end as on a machine without that memory: the allocation fails.
ASAN_OPTIONS=$ASAN_OPTIONS:max_allocation_size_mb=1024 "$python" -m tests.fuzz --kind good-calls --kind bad-calls --seconds 60
