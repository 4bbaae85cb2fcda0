// torch's tensors as kernels take them.
#pragma once

#include "common/dispatcher.h"
#include "common/formats.h"
#include "common/operands.h"

namespace aoext::xpu {

// What a product reads, without gaps. Null is what the problem has none of.
struct Dense {
  Tensor input, weight;
  OptionalTensor scale, zero_point, table, global_scale, input_scale, bias, offsets;
};

inline const void* data_of(const OptionalTensor& t) { return t ? t->const_data_ptr() : nullptr; }
inline const float* floats_of(const OptionalTensor& t) { return static_cast<const float*>(data_of(t)); }
inline const int* ints_of(const OptionalTensor& t) { return static_cast<const int*>(data_of(t)); }

inline OptionalTensor contiguous(const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); }

inline bool is_aligned(const Tensor& t, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0; }

}  // namespace aoext::xpu
