// The 8-bit by 8-bit product of Hopper's matrix engine: kernels/sm90a/rowwise_wgmma.cuh.
#pragma once

#include <cstddef>

#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

// Whether the kernel computes this problem: x and weight of one 8-bit type, rows of a multiple of 16 bytes, everything 16-byte
// aligned; float8 to 16 bits alone, since the engine's sums are not worth more.
bool rowwise_wgmma_takes(const RowwiseLinear& p);

// How a product is cut.
struct RowwiseWgmmaConfig {
  int rows;     // of w in a tile: 64 or 128
  int tokens;   // rows of x in a tile: 32, 64, 128 or, beside 128 of w, 256
  int cluster;  // blocks that share a tile of those that do not come out even (segments.h): 1 or 2
  int ranges;   // or blocks that share all of these, or 0
  int blocks;   // in all, which run at once
};

RowwiseWgmmaConfig choose_rowwise_wgmma(const RowwiseLinear& p, int sms);
size_t rowwise_wgmma_workspace(const RowwiseLinear& p, const RowwiseWgmmaConfig& config);  // bytes
cudaError_t launch_rowwise_wgmma(const RowwiseLinear& p, const RowwiseWgmmaConfig& config, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda
