// Products of rowwise.h of any shape, type and alignment.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/rowwise.h"

namespace aoext::cuda {

struct RowwiseAny {
  bool operator==(const RowwiseAny&) const = default;
};

template <>
struct KernelOf<RowwiseAny> : AnyKernel<RowwiseAny, RowwiseLinear> {
  static constexpr const char* kName = "rowwise_any";
  // K is below 2³¹.
  static cudaError_t launch(const RowwiseLinear& p, const RowwiseAny& c, void* workspace, cudaStream_t stream);
};

}  // namespace aoext::cuda
