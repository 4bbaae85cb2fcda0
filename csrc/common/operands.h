// The tensors of a product as kernels take them, borrowed from the arguments of the call. Null where there is none.
#pragma once

#include "common/torch_api.h"

namespace aoext {

// A weight in one of the formats of common/formats.h.
struct Weight {
  const Tensor &values, &scale;
  const Tensor* zero_point = nullptr;
  const Tensor* table = nullptr;
  const Tensor* global_scale = nullptr;
};

struct Operands {
  const Tensor& input;
  Weight weight;
  const Tensor* input_scale = nullptr;
  const Tensor* bias = nullptr;
  const Tensor* offsets = nullptr;
};

inline const Tensor* pointer_to(const OptionalTensor& t) { return t ? &*t : nullptr; }
inline OptionalTensor optional(const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(*t); }

}  // namespace aoext
