#!/usr/bin/env bash
# Looks for errors in the sources for NVIDIA GPUs. nvcc reads them and generates no code for GPUs, which is what takes long:
# four minutes of one core, where a wheel for one GPU takes forty.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."

cmake=$(dirname "$python")/cmake build=build/check-cuda
"$cmake" -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=None -DCMAKE_CUDA_FLAGS=-fdevice-syntax-only -DPython_EXECUTABLE="$python" \
  -DAOEXT_CUDA=ON -DAOEXT_CUDA_ARCHITECTURES=90 -DAOEXT_SYCL=OFF -DSKBUILD_PROJECT_VERSION_FULL=check >/dev/null
"$cmake" --build $build --target aoext_cuda_objects
