#include "generic/quantize_values.h"

#include <limits>

#include "common/dispatcher.h"
#include "common/formats.h"

namespace aoext::generic {
namespace {

// Positive normal numbers up to the next power of two: without its mantissa a number is the power below it.
Tensor rounded_up(const Tensor& scale) {
  const Tensor exponent = aten::scalar_like(0x7f800000, ScalarType::Int, scale);
  const Tensor below =
      aten::view_as(call("aten::bitwise_and", "Tensor", aten::view_as(scale, ScalarType::Int), exponent), ScalarType::Float);
  return aten::where(call("aten::eq", "Tensor", below, scale), below,
                     aten::mul(below, aten::scalar_like(2, ScalarType::Float, scale)));
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_values(const Tensor& x, ScalarType dtype, bool power_of_two) {
  const auto constant = [&](double v) { return aten::scalar_like(v, ScalarType::Float, x); };
  const double limit = quantized_max(dtype);
  const Tensor zero = constant(0);
  const Tensor absmax = call("aten::amax", "", call("aten::abs", "", x), std::vector<int64_t>{-1}, true);
  const Tensor finite = call("aten::isfinite", "", absmax);
  Tensor scale = call("aten::maximum", "", aten::div(absmax, constant(limit)), constant(std::numeric_limits<float>::min()));
  if (power_of_two) scale = rounded_up(scale);
  scale = aten::where(call("aten::eq", "Tensor", absmax, zero), constant(1), scale);
  scale = aten::where(finite, scale, constant(std::numeric_limits<double>::quiet_NaN()));
  Tensor q = aten::where(finite, aten::div(x, scale), zero);
  if (dtype == ScalarType::Char) q = call("aten::round", "", q);
  q = call("aten::clamp", "Tensor", q, std::optional(constant(-limit)), std::optional(constant(limit)));
  return {aten::to(q, dtype), scale};
}

}  // namespace aoext::generic
