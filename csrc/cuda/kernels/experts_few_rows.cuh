// few_rows.cuh for experts. A token goes to several, so of few rows in all most have an expert of their own. Each tile of rows is
// a product of its own, whose blocks, at its place along z, find its expert and go on as if there were no other.
#pragma once

#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/few_rows.cuh"

namespace aoext::cuda {

// What `p` says for tiles of more rows, for one of so many.
template <class Params>
__device__ __forceinline__ void set_rows(Params& p, int rows, int warp_tiles) {
  p.M = rows, p.m_magic = ((1u << 20) + rows - 1) / rows;
  if (p.buffer_stride > 0) p.buffer_stride = rows * (blockDim.z * warp_tiles * blockDim.y * SplitKReduction<float>::kStride);
}

// Rows of y become zero, by all blocks of a tile.
__device__ __forceinline__ void clear_rows(void* y, const ExpertRows& rows, int64_t N, Element type) {
  const int threads = 32 * blockDim.y * blockDim.z, thread = (threadIdx.z * blockDim.y + threadIdx.y) * 32 + threadIdx.x;
  const int64_t first = (blockIdx.y * gridDim.x + blockIdx.x) * threads + thread, step = gridDim.x * gridDim.y * threads;
  for (int64_t i = rows.begin * N + first; i < rows.end * N; i += step) clear(y, i, type);
}

}  // namespace aoext::cuda
