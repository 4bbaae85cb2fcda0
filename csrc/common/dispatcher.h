// Calls of ATen operators through PyTorch's dispatcher, so that they run on any device.
//
// The stable ABI passes no Scalar arguments, so constants are zero-dimensional tensors (`scalar_like`), passed to the
// Tensor overloads.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/torch_api.h"

namespace aoext {

// Raises RuntimeError with the reason of the inner call where this torch can tell it (from 2.13 on).
[[noreturn]] void raise_dispatch_error(const char* op);

// What an operator returns: so many tensors.
template <size_t kResults, class... Args>
std::array<Tensor, kResults> call_all(const char* op, const char* overload, const Args&... args) {
  StableIValue stack[std::max(kResults, sizeof...(Args))] = {torch::stable::detail::from(args)...};
  if (torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) raise_dispatch_error(op);
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return std::array<Tensor, kResults>{torch::stable::detail::to<Tensor>(stack[i])...};
  }(std::make_index_sequence<kResults>());
}

template <class... Args>
Tensor call(const char* op, const char* overload, const Args&... args) {
  return std::move(call_all<1>(op, overload, args...)[0]);
}

namespace aten {

Tensor empty(Sizes sizes, ScalarType dtype, const Tensor& device_of);
Tensor zeros(Sizes sizes, ScalarType dtype, const Tensor& device_of);
Tensor scalar_like(double value, ScalarType dtype, const Tensor& device_of);
Tensor to(const Tensor& t, ScalarType dtype);
Tensor contiguous(const Tensor& t);
Tensor reshape(const Tensor& t, Sizes sizes);
Tensor view_as(const Tensor& t, ScalarType dtype);  // the same bytes
Tensor narrow(const Tensor& t, int64_t dim, int64_t start, int64_t length);
Tensor select(const Tensor& t, int64_t dim, int64_t index);
Tensor on_cpu(const Tensor& t);     // a copy, which the host waits for
Tensor transpose(const Tensor& t);  // of the two dimensions of a matrix
Tensor unsqueeze(const Tensor& t, int64_t dim);
void copy_(const Tensor& self, const Tensor& source);

Tensor mm(const Tensor& a, const Tensor& b);
Tensor linear(const Tensor& x, const Tensor& w, const OptionalTensor& bias);
Tensor add(const Tensor& a, const Tensor& b);
Tensor subtract(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor repeat_interleave(const Tensor& t, int64_t repeats, int64_t dim);
Tensor sum(const Tensor& t, int64_t dim, bool keepdim = false);  // in float32
Tensor cat(const Tensor& a, const Tensor& b, int64_t dim);
Tensor stack_last(const Tensor& a, const Tensor& b);  // [..., 2] of two [...]

}  // namespace aten
}  // namespace aoext
