#pragma once

#include <algorithm>
#include <initializer_list>

#include "common/checks.h"
#include "common/dispatcher.h"
#include "common/explain.h"
#include "cuda/device.h"
#include "cuda/kernels/sizes.h"
#include "cuda/plan.h"

namespace aoext::cuda {

// Whether all these tensors start at multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return is_aligned(t->const_data_ptr()); });
}

// The tensor itself, contiguous and at a multiple of 16 bytes, or a copy that is: views may start anywhere.
inline Tensor aligned(const Tensor& t) {
  const Tensor dense = aten::contiguous(t);
  if (are_aligned({&dense})) return dense;
  const Tensor copy = aten::empty(dense.sizes(), dense.scalar_type(), dense);
  aten::copy_(copy, dense);
  return copy;
}

inline void* data_of(const OptionalTensor& t) { return t ? t->mutable_data_ptr() : nullptr; }

// Memory for a kernel to work in, from torch's allocator, so that it belongs to the current stream, or to the graph that is being
// captured.
inline OptionalTensor workspace(size_t bytes, const Tensor& like) {
  if (bytes == 0) return std::nullopt;
  return aten::empty({static_cast<int64_t>(bytes)}, ScalarType::Byte, like);
}

// For aoext.explain: of an operator with one kernel, which has its name.
inline Explanation explain_one_pass(const Call& call) {
  const bool serves = takes_one_pass(call.problem.K, device_of(call.tensor(0)));
  return serves ? explain_kernel(call.op.c_str()) : generic_explanation();
}

}  // namespace aoext::cuda
