// Weight-only products of Hopper's matrix engine, from 17 rows of x on: kernels/sm90a/weight_only_wgmma.cuh. Weights of 8 bits
// here, int4 in int4_wgmma.h.
#pragma once

#include <cstddef>

#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

struct WgmmaConfig {
  int tokens;   // rows of x in a tile: 32, 64, 96, 128, 192 or 256
  int cluster;  // blocks that share a tile of those that do not come out even (segments.h): 1 or 2, of 8-bit weights 3 too
  int ranges;   // or all blocks that share all of these, or 0
  int blocks;   // in all, which run at once
};

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of x, weight and y.
bool weight_only_wgmma_takes(const RowwiseLinear& p);
WgmmaConfig choose_weight_only_wgmma(const RowwiseLinear& p, int sms);
size_t weight_only_wgmma_workspace(const RowwiseLinear& p, const WgmmaConfig& config);  // bytes
cudaError_t launch_weight_only_wgmma(const RowwiseLinear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda
