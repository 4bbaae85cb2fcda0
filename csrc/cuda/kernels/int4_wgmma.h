// The int4 product of Hopper's matrix engine, from 17 rows of x on: kernels/sm90a/int4_wgmma.cuh.
#pragma once

#include <cstddef>

#include "cuda/kernels/int4.h"

namespace aoext::cuda {

struct WgmmaConfig {
  int tokens;   // rows of x in a tile: 32, 64, 96, 128, 192 or 256
  int cluster;  // blocks that share a tile of those that do not come out even (segments.h): 1 or 2
  int ranges;   // or all blocks that share all of these, or 0
  int blocks;   // in all, which run at once
};

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
bool int4_wgmma_takes(const Int4Linear& p);
WgmmaConfig choose_int4_wgmma(const Int4Linear& p, int sms);
size_t int4_wgmma_workspace(const Int4Linear& p, const WgmmaConfig& config);  // bytes
cudaError_t launch_int4_wgmma(const Int4Linear& p, const WgmmaConfig& config, void* workspace, cudaStream_t stream);

}  // namespace aoext::cuda
