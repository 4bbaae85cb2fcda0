// Products of blocks.h of any shape, type, block and alignment.
#pragma once

#include "cuda/kernels/blocks.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

struct BlocksAny {
  bool operator==(const BlocksAny&) const = default;
};

template <>
struct KernelOf<BlocksAny> : AnyKernel<BlocksAny, BlockLinear> {
  static constexpr const char* kName = "blocks_any";
  // K is below 2³¹.
  static cudaError_t launch(const BlockLinear& p, const BlocksAny& c, void* workspace, cudaStream_t stream);
};

}  // namespace aoext::cuda
