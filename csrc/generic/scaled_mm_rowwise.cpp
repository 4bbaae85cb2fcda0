// 8-bit input × 8-bit weight with row and column scales on any device.
#include "generic/blocks.h"
#include "generic/generic.h"

namespace aoext::generic {
namespace {

// (acc · input_scale) · weight_scale + bias in float32, rounded once; acc [M, N] of columns [first, first + count).
Tensor scale(const LinearProblem& p, const Tensor& acc, const Tensor& input_scale, const Tensor& weight_scale,
             const OptionalTensor& bias, int64_t first, int64_t count) {
  const Tensor rows = aten::reshape(input_scale, {p.M, 1});
  const Tensor columns = aten::transpose(aten::narrow(weight_scale, 0, first, count));
  Tensor y = aten::mul(aten::mul(aten::to(acc, ScalarType::Float), rows), columns);
  if (bias) y = aten::add(y, aten::to(aten::narrow(*bias, 0, first, count), ScalarType::Float));
  return aten::to(y, p.output);
}

}  // namespace

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_rowwise(input, weight, input_scale, weight_scale, bias, out_dtype);
  Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(aten::reshape(input, {p.M, p.K}));
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  const bool is_int8 = p.input == ScalarType::Char;
  const Tensor x32 = is_int8 ? x : aten::to(x, ScalarType::Float);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    const Tensor w = aten::narrow(weight, 0, first, count);
    // Through the dispatcher: a device's own int8_mm serves here too.
    const Tensor acc = is_int8 ? call("ao::int8_mm", "", x, w) : aten::mm(x32, aten::transpose(aten::to(w, ScalarType::Float)));
    aten::copy_(aten::narrow(y2d, 1, first, count), scale(p, acc, input_scale, weight_scale, bias, first, count));
  });
  return y;
}

}  // namespace aoext::generic
