#include "common/dispatcher.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/describe.h"
#include "common/portability.h"

namespace aoext {

void raise_dispatch_error(const char* op) {
  // In libtorch from 2.13 on: looked up by name, so that the library needs no more than 2.10.
  using What = const char*();
  static What* const what = find_function<What>("torch_exception_get_what_without_backtrace", "torch_cpu");
  const std::string reason = what == nullptr ? "" : what();
  throw std::runtime_error(std::string(op) + " failed" + (reason.empty() ? "" : ": " + reason));
}

namespace aten {
namespace {

constexpr std::nullopt_t kNone = std::nullopt;

}  // namespace

// Every product allocates its result so: by the C function, which takes half the time of a call by name.
Tensor empty(Sizes sizes, ScalarType dtype, const Tensor& device_of) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  const auto [device_type, device_index] = aoext::device_of(device_of);
  const auto dtype_code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle result = nullptr;
  if (aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype_code, device_type,
                               device_index, &result) != AOTI_TORCH_SUCCESS)
    raise_dispatch_error("aten::empty_strided");
  return Tensor(result);
}

Tensor zeros(Sizes sizes, ScalarType dtype, const Tensor& device_of) {
  return call("aten::zeros", "", sizes, std::optional(dtype), kNone, std::optional(device_of.device()), kNone);
}

Tensor scalar_like(double value, ScalarType dtype, const Tensor& device_of) {
  return torch::stable::full({}, value, dtype, std::nullopt, device_of.device());
}

Tensor to(const Tensor& t, ScalarType dtype) { return call("aten::to", "dtype", t, dtype, false, false, kNone); }

Tensor contiguous(const Tensor& t) {
  return t.is_contiguous() ? t : call("aten::contiguous", "", t, torch::headeronly::MemoryFormat::Contiguous);
}

Tensor reshape(const Tensor& t, Sizes sizes) { return call("aten::reshape", "", t, sizes); }

Tensor view_as(const Tensor& t, ScalarType dtype) { return call("aten::view", "dtype", t, dtype); }

Tensor narrow(const Tensor& t, int64_t dim, int64_t start, int64_t length) {
  return call("aten::narrow", "", t, dim, start, length);
}

Tensor select(const Tensor& t, int64_t dim, int64_t index) { return call("aten::select", "int", t, dim, index); }

Tensor on_cpu(const Tensor& t) {
  const torch::stable::Device cpu(torch::headeronly::DeviceType::CPU);
  return call("aten::_to_copy", "", t, kNone, kNone, std::optional(cpu), kNone, false, kNone);
}

Tensor transpose(const Tensor& t) { return call("aten::transpose", "int", t, int64_t{0}, int64_t{1}); }

Tensor unsqueeze(const Tensor& t, int64_t dim) { return call("aten::unsqueeze", "", t, dim); }

void copy_(const Tensor& self, const Tensor& source) { call("aten::copy_", "", self, source, false); }

Tensor mm(const Tensor& a, const Tensor& b) { return call("aten::mm", "", a, b); }

Tensor linear(const Tensor& x, const Tensor& w, const OptionalTensor& bias) { return call("aten::linear", "", x, w, bias); }

Tensor add(const Tensor& a, const Tensor& b) { return torch::stable::subtract(a, b, -1.0); }

Tensor subtract(const Tensor& a, const Tensor& b) { return torch::stable::subtract(a, b, 1.0); }

Tensor mul(const Tensor& a, const Tensor& b) { return call("aten::mul", "Tensor", a, b); }

Tensor div(const Tensor& a, const Tensor& b) { return call("aten::div", "Tensor", a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) { return call("aten::where", "self", condition, a, b); }

Tensor repeat_interleave(const Tensor& t, int64_t repeats, int64_t dim) {
  return call("aten::repeat_interleave", "self_int", t, repeats, std::optional(dim), std::optional(repeats * t.size(dim)));
}

Tensor sum(const Tensor& t, int64_t dim, bool keepdim) {
  return call("aten::sum", "dim_IntList", t, std::optional(std::vector<int64_t>{dim}), keepdim, std::optional(ScalarType::Float));
}

Tensor cat(const Tensor& a, const Tensor& b, int64_t dim) { return call("aten::cat", "", std::vector<Tensor>{a, b}, dim); }

Tensor stack_last(const Tensor& a, const Tensor& b) { return call("aten::stack", "", std::vector<Tensor>{a, b}, int64_t{-1}); }

}  // namespace aten
}  // namespace aoext
