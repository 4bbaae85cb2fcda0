// Products with 8-bit weights for many rows by mma.sync, on every GPU from sm_80 on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

// Output tile of a block, over how many blocks K is split, and whether float8 goes to the tensor cores as it is.
struct RowwiseMmaConfig {
  int block_n, block_m, splits, float8;
};

// K is a multiple of 16, up to 2^30, or 131071 where the sums are int32; x and weight start at 16-byte boundaries. x is of
// the weight's type, or bf16 or fp16.
bool rowwise_mma_takes(const RowwiseLinear& p);

// `float8_units`: whether mma.sync multiplies float8 faster than fp16, as on compute capability 8.9 and 12; it does not on 9.0.
RowwiseMmaConfig choose_rowwise_mma(const RowwiseLinear& p, int sms, bool float8_units = false);

// In bytes; 0 for one split.
size_t rowwise_mma_workspace(const RowwiseLinear& p, const RowwiseMmaConfig& config);

cudaError_t launch_rowwise_mma(const RowwiseLinear& p, const RowwiseMmaConfig& config, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda
