// Weight-only int4 of any shape, group, type and alignment, of experts or not.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

struct Int4Any {
  bool operator==(const Int4Any&) const = default;
};

template <>
struct KernelOf<Int4Any> : AnyKernel<Int4Any, Int4Linear> {
  static constexpr const char* kName = "int4_any";
  // K is even and below 2³¹.
  static cudaError_t launch(const Int4Linear& p, const Int4Any& c, void* workspace, cudaStream_t stream);
};

}  // namespace aoext::cuda
