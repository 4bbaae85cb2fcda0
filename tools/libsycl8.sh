#!/usr/bin/env bash
# Whether the host code for Intel GPUs also fits libsycl 8, which torch 2.11 and 2.12 for XPU bring: every file of it
# compiles against those headers, and what it then asks of libsycl is there. Kernels are SPIR-V, the same for both.
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."

release=2025.3.2 # of intel-sycl-rt, as torch 2.12 for XPU asks for it
folder=$PWD/build/libsycl8
packages=$folder/$release
rm -rf "$folder/objects" && mkdir -p "$folder/objects"
if [ ! -e "$packages" ]; then
  "$python" -m pip download --quiet --no-deps --dest "$folder" "intel-sycl-rt==$release"
  "$python" -m zipfile --extract "$folder"/intel_sycl_rt-*.whl "$packages"
  rm "$folder"/intel_sycl_rt-*.whl
fi
header=$(find "$packages" -path '*/include/sycl/sycl.hpp')
library=$(find "$packages" -name libsycl.so.8)
torch=$("$python" -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent)")
onednn=$("$python" -c "import sys; print(sys.prefix)")/include

# oneDNN's headers alone: beside them lie those of another SYCL.
rm -rf "$folder/onednn" && mkdir -p "$folder/onednn/oneapi"
cp -r "$onednn/oneapi/dnnl" "$folder/onednn/oneapi/"

failed=0
for source in csrc/sycl/*.cpp csrc/sycl/onednn/*.cpp; do
  object=$folder/objects/${source//\//_}.o
  echo "libsycl 8: $source"
  ${CXX:-c++} -std=c++20 -O1 -fPIC -fvisibility=hidden -Wall -Wextra -c "$source" -o "$object" -Icsrc \
    -isystem "$(dirname "$(dirname "$header")")" -isystem "$folder/onednn" -isystem "$torch/include" \
    -DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING -DTORCH_TARGET_VERSION=0x020a000000000000ULL -DTORCH_STABLE_ONLY ||
    { failed=1; rm -f "$object"; }
done

# Symbols of SYCL that no object defines and that library lacks.
names() { awk '{ print $NF }' | sed 's/@.*//' | sort -u; }
missing=$(comm -23 <(nm --undefined-only "$folder"/objects/*.o | names | grep 4sycl3_V1) \
  <({ nm -D --defined-only "$library"; nm --defined-only "$folder"/objects/*.o; } | names))
if [ -n "$missing" ]; then
  echo "libsycl 8 lacks:" && c++filt <<<"$missing"
  failed=1
fi
exit $failed
