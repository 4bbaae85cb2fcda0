// Products with weights in blocks of bytes of any shape, type, group and alignment.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

struct PackedAny {
  bool operator==(const PackedAny&) const = default;
};

template <>
struct KernelOf<PackedAny> : AnyKernel<PackedAny, PackedLinear> {
  static constexpr const char* kName = "packed_any";
  // K is below 2³¹.
  static cudaError_t launch(const PackedLinear& p, const PackedAny& c, void* workspace, cudaStream_t stream);
};

}  // namespace aoext::cuda
