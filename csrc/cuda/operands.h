#pragma once

#include <algorithm>
#include <initializer_list>

#include "common/checks.h"
#include "common/dispatcher.h"
#include "common/explain.h"
#include "common/operands.h"
#include "cuda/device.h"
#include "cuda/kernels/sizes.h"
#include "cuda/plan.h"

namespace aoext::cuda {

// Whether all these tensors start at multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return is_aligned(t->const_data_ptr()); });
}

// What plans ask of a weight, which stays where it is: its values and, where it has zero points, these and its scales.
inline bool is_aligned(const Weight& w) {
  return are_aligned({&w.values}) && (w.zero_point == nullptr || are_aligned({&w.scale, w.zero_point}));
}

// The tensor itself, contiguous and at a multiple of 16 bytes, or a copy that is: views may start anywhere.
inline Tensor aligned(const Tensor& t) {
  const Tensor dense = aten::contiguous(t);
  if (are_aligned({&dense})) return dense;
  const Tensor copy = aten::empty(dense.sizes(), dense.scalar_type(), dense);
  aten::copy_(copy, dense);
  return copy;
}

inline Tensor converted(const Tensor& t, ScalarType dtype) { return t.scalar_type() == dtype ? t : aten::to(t, dtype); }

inline OptionalTensor dense(const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); }

// Where the rows of experts end, for a product of these.
inline const int32_t* ends_of(const Operands& of) {
  return of.offsets == nullptr ? nullptr : static_cast<const int32_t*>(of.offsets->const_data_ptr());
}

inline void* data_of(const OptionalTensor& t) { return t ? t->mutable_data_ptr() : nullptr; }

// Memory for a kernel to work in, from torch's allocator, so that it belongs to the current stream, or to the graph that is being
// captured.
inline OptionalTensor workspace(size_t bytes, const Tensor& like) {
  if (bytes == 0) return std::nullopt;
  return aten::empty({static_cast<int64_t>(bytes)}, ScalarType::Byte, like);
}

// Launches the kernel of a plan that is not generic.
template <class Kernels, class Problem>
void launch_planned(const char* op, const Kernels& kernel, const Problem& p, const Tensor& y, cudaStream_t stream) {
  const OptionalTensor space = workspace(workspace_bytes(kernel, p), y);
  check(launch_kernel(kernel, p, data_of(space), stream), op);
}

// Whether the weight among a call's tensors is, for aoext.explain; the scales count where they have zero points beside them.
inline bool is_weight_aligned(const Call& call) {
  const Tensor& values = *call.named("weight");
  const Tensor* const zero_point = call.problem.has_nested_scale ? nullptr : call.named("zero_point");
  return is_aligned(Weight{values, zero_point == nullptr ? values : *call.named("scale"), zero_point});
}

}  // namespace aoext::cuda
