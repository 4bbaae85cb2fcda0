// The int4 product of Hopper's matrix engine, from 17 rows of x on: kernels/sm90a/int4_wgmma.cuh.
#pragma once

#include "cuda/kernels/int4.h"

namespace aoext::cuda {

struct WgmmaConfig {
  int tokens;  // rows of x in a tile: 32, 64, 96, 128, 192 or 256
  int splits;  // blocks of a cluster that share K, 1 to 8
  int blocks;  // in all: one for a tile and split, or, with one split, as many as run at once
};

// Whether the kernel reads a problem of these sizes at all; it also wants a 16-byte alignment of everything.
bool int4_wgmma_takes(const Int4Linear& p);
WgmmaConfig choose_int4_wgmma(const Int4Linear& p, int sms);
cudaError_t launch_int4_wgmma(const Int4Linear& p, const WgmmaConfig& config, cudaStream_t stream);

}  // namespace aoext::cuda
