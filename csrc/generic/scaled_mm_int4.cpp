// 8-bit input × int4 weight on any device: y = Σ_g (scale_g · (s_x · Σ q_x·q) + zero_g · (s_x · Σ q_x)) + bias. Sums of int8
// inside a group are exact: |q_x·q| <= 2^10, so that float32 holds those of up to 2^14 elements. s_x meets them first: codes of
// float8 by scales near float32's largest are beyond it.
#include "generic/blocks.h"
#include "generic/dequantize_int4.h"
#include "generic/generic.h"

namespace aoext::generic {
namespace {

Tensor permute(const Tensor& t, const std::vector<int64_t>& order) { return call("aten::permute", "", t, order); }

}  // namespace

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const int64_t groups = p.K / p.group_size;
  const Tensor rows = aten::to(aten::reshape(input, {p.M, p.K}), ScalarType::Float);
  const Tensor x = permute(aten::reshape(rows, {p.M, groups, p.group_size}), {1, 0, 2});  // [groups, M, group_size]
  const Tensor row_scale = aten::reshape(input_scale, {1, p.M, 1});
  const Tensor sums = aten::mul(aten::sum(x, 2, true), row_scale);
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  for_row_blocks(p.N, std::max(p.K, groups * p.M), [&](int64_t first, int64_t count) {
    const auto columns = [&](const Tensor& t) {  // [groups, 1, count]
      return aten::unsqueeze(aten::to(aten::narrow(t, 1, first, count), ScalarType::Float), 1);
    };
    const Tensor q = aten::reshape(unpack_int4_rows(weight, first, count), {count, groups, p.group_size});
    const Tensor products = aten::mul(call("aten::bmm", "", x, permute(q, {1, 2, 0})), row_scale);
    const Tensor of_groups = aten::add(aten::mul(products, columns(scale)), aten::mul(sums, columns(zero_point)));
    Tensor block = aten::sum(of_groups, 0);
    if (bias) block = aten::add(block, aten::to(aten::narrow(*bias, 0, first, count), ScalarType::Float));
    aten::copy_(aten::narrow(y2d, 1, first, count), block);
  });
  return y;
}

}  // namespace aoext::generic
