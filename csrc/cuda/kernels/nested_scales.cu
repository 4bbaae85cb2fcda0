// A block of threads takes some of the blocks of 256 scales that share a factor, a scale of each to a thread: a warp reads 32
// bytes and writes 128 at a time, and looks its scales up in shared memory.
#include "cuda/kernels/nested_scales.h"

#include <algorithm>

#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kTogether = 256, kOfBlock = 4;
constexpr int64_t kMostBlocks = 1 << 16;  // each goes on with further ones

__global__ void __launch_bounds__(kTogether) nested_scales(const __grid_constant__ NestedScales p, int64_t parts) {
  __shared__ float table[kTogether];
  table[threadIdx.x] = p.table[threadIdx.x];
  __syncthreads();
  for (int64_t at = blockIdx.x; at < p.experts * parts; at += gridDim.x) {
    const int64_t expert = at / parts, first = at % parts * kOfBlock;
    const float offset = p.offsets[expert];
#pragma unroll
    for (int j = 0; j < kOfBlock; ++j) {
      const int64_t i = (first + j) * kTogether + threadIdx.x;
      if (i < p.count)
        p.out[expert * p.count + i] = __fadd_rn(
            __fmul_rn(table[p.codes[expert * p.count + i]], p.factors[expert * p.factors_of_expert + first + j]), offset);
    }
  }
}

}  // namespace

cudaError_t launch_nested_scales(const NestedScales& p, cudaStream_t stream) {
  const int64_t parts = ceil_div(p.count, int64_t{kTogether * kOfBlock});
  nested_scales<<<static_cast<unsigned>(std::min(p.experts * parts, kMostBlocks)), kTogether, 0, stream>>>(p, parts);
  return cudaGetLastError();
}

}  // namespace aoext::cuda
