// Dynamic quantisation on any device; DESIGN's formula line by line, so that the bits are the same everywhere.
#include <limits>

#include "common/formats.h"
#include "generic/blocks.h"
#include "generic/generic.h"

namespace aoext::generic {
namespace {

std::tuple<Tensor, Tensor> quantize_block(const Tensor& x, ScalarType dtype) {
  const auto constant = [&](double v) { return aten::scalar_like(v, ScalarType::Float, x); };
  const auto where = [](const Tensor& condition, const Tensor& a, const Tensor& b) {
    return call("aten::where", "self", condition, a, b);
  };
  const double limit = quantized_max(dtype);
  const Tensor zero = constant(0);
  const Tensor absmax = call("aten::amax", "", call("aten::abs", "", x), std::vector<int64_t>{-1}, true);
  const Tensor finite = call("aten::isfinite", "", absmax);
  Tensor scale = call("aten::maximum", "", aten::div(absmax, constant(limit)), constant(std::numeric_limits<float>::min()));
  scale = where(call("aten::eq", "Tensor", absmax, zero), constant(1), scale);
  scale = where(finite, scale, constant(std::numeric_limits<double>::quiet_NaN()));
  Tensor q = where(finite, aten::div(x, scale), zero);
  if (dtype == ScalarType::Char) q = call("aten::round", "", q);
  q = call("aten::clamp", "Tensor", q, std::optional(constant(-limit)), std::optional(constant(limit)));
  return {aten::to(q, dtype), scale};
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::reshape(input, {p.M, p.K});
  const Tensor values2d = aten::reshape(values, {p.M, p.K});
  const Tensor scales2d = aten::reshape(scales, {p.M, 1});
  for_row_blocks(p.M, p.K, [&](int64_t first, int64_t count) {
    const auto [q, scale] = quantize_block(aten::to(aten::narrow(x, 0, first, count), ScalarType::Float), dtype);
    aten::copy_(aten::narrow(values2d, 0, first, count), q);
    aten::copy_(aten::narrow(scales2d, 0, first, count), scale);
  });
  return {values, scales};
}

}  // namespace aoext::generic
