// Products with 8-bit weights for many rows by mma.sync, on every GPU from sm_80 on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "cuda/kernels/rowwise.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Output tile of a block, over how many blocks K is split, and whether the tensor cores are given float8 as it is.
struct RowwiseMmaConfig {
  int block_n, block_m, splits, float8;

  bool operator==(const RowwiseMmaConfig&) const = default;
};

// Either x is of the weight's type, and y is bf16, fp16, fp32 or, of int8, int32; or x and y are bf16 or fp16. K is a multiple of
// 16; M, N and K are 2^30 at most, K of int8 131071, lest the sum overflow; x and weight start at 16-byte boundaries.
bool rowwise_mma_takes(const RowwiseLinear& p);

// Where the GPU's mma.sync has float8 (compute capability 8.9; on 9.0 it becomes fp16 there too, so nothing is won), it is used,
// but what it adds up is too short for a float32 y, which always goes through fp16.
RowwiseMmaConfig choose_rowwise_mma(const RowwiseLinear& p, const Device& device);
// Whether a configuration fits the problem and the kernel has code for it; what it takes of a device is the device's to say.
bool rowwise_mma_fits(const RowwiseLinear& p, const RowwiseMmaConfig& config);

// In bytes; 0 for one split.
size_t rowwise_mma_workspace(const RowwiseLinear& p, const RowwiseMmaConfig& config);

cudaError_t launch_rowwise_mma(const RowwiseLinear& p, const RowwiseMmaConfig& config, void* workspace, cudaStream_t stream);

// Its instances, a line each, and the line of what a launch runs (instances.h).
std::string rowwise_mma_instances();
std::string rowwise_mma_instance(const RowwiseLinear& p, const RowwiseMmaConfig& c);

}  // namespace aoext::cuda
