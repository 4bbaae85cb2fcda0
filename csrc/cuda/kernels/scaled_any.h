// Products of scaled.h of any shape, type, block and alignment.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/scaled.h"

namespace aoext::cuda {

struct ScaledAny {
  bool operator==(const ScaledAny&) const = default;
};

template <>
struct KernelOf<ScaledAny> : AnyKernel<ScaledAny, ScaledLinear> {
  static constexpr const char* kName = "scaled_any";
  // K is below 2³¹.
  static cudaError_t launch(const ScaledLinear& p, const ScaledAny& c, void* workspace, cudaStream_t stream);
};

}  // namespace aoext::cuda
