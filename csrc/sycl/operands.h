// torch's tensors and dtypes as kernels take them.
#pragma once

#include <optional>

#include "common/dispatcher.h"
#include "sycl/kernels/element.h"

namespace aoext::xpu {

inline Element element(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return kBf16;
    case ScalarType::Half: return kFp16;
    case ScalarType::Float: return kFp32;
    case ScalarType::Char: return kInt8;
    case ScalarType::Float8_e4m3fn: return kE4m3;
    case ScalarType::Float8_e5m2: return kE5m2;
    case ScalarType::Float8_e8m0fnu: return kE8m0;
    default: return kInt32;
  }
}

inline const void* data_of(const std::optional<Tensor>& t) { return t ? t->const_data_ptr() : nullptr; }

inline std::optional<Tensor> contiguous(const std::optional<Tensor>& t) {
  return t ? std::optional(aten::contiguous(*t)) : std::nullopt;
}

inline bool is_aligned(const Tensor& t, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % bytes == 0; }

}  // namespace aoext::xpu
