// Products of an input that is quantised to 8 bits, on any device.
#include "generic/products.h"
#include "generic/weight_rows.h"

namespace aoext::generic {
namespace {

Tensor permute(const Tensor& t, const std::vector<int64_t>& order) { return call("aten::permute", "", t, order); }

// Rows [first, first + count) of the bias in float32, added to y [M, count].
Tensor with_bias(const Operands& of, const Tensor& y, int64_t first, int64_t count) {
  return of.bias == nullptr ? y : aten::add(y, aten::to(aten::narrow(*of.bias, 0, first, count), ScalarType::Float));
}

// Scales of rows on both sides: y = (Σ q_x·q · input_scale) · scale + bias in float32, the sum of int8 exact.
Tensor by_rows(const LinearProblem& p, const Operands& of) {
  Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  const Tensor x = aten::contiguous(aten::reshape(of.input, {p.M, p.K}));
  const Tensor row_scale = aten::reshape(*of.input_scale, {p.M, 1});
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  const bool is_int8 = p.input == ScalarType::Char;
  const Tensor x32 = is_int8 ? x : aten::to(x, ScalarType::Float);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    const Tensor w = aten::narrow(of.weight.values, 0, first, count);
    // Through the dispatcher: a device's own int8_mm serves here too.
    const Tensor sums = is_int8 ? call("ao::int8_mm", "", x, w) : aten::mm(x32, aten::transpose(aten::to(w, ScalarType::Float)));
    const Tensor columns = aten::transpose(aten::narrow(of.weight.scale, 0, first, count));
    const Tensor block = aten::mul(aten::mul(aten::to(sums, ScalarType::Float), row_scale), columns);
    aten::copy_(aten::narrow(y2d, 1, first, count), aten::to(with_bias(of, block, first, count), p.output));
  });
  return y;
}

// Groups with zero points: y = Σ_g (scale_g · (s_x · Σ q_x·q) + zero_g · (s_x · Σ q_x)) + bias. Sums of int8 inside a group are
// exact: |q_x·q| <= 2^10 of codes of four bits, so that float32 holds those of up to 2^14 elements; 2^10 of them of seven bits.
// s_x meets them first: codes of float8 by scales near float32's largest are beyond it.
Tensor by_groups(const LinearProblem& p, const Operands& of) {
  Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  const int64_t groups = p.K / p.group_size;
  const Tensor rows = aten::to(aten::reshape(of.input, {p.M, p.K}), ScalarType::Float);
  const Tensor x = permute(aten::reshape(rows, {p.M, groups, p.group_size}), {1, 0, 2});  // [groups, M, group_size]
  const Tensor row_scale = aten::reshape(*of.input_scale, {1, p.M, 1});
  const Tensor sums = aten::mul(aten::sum(x, 2, true), row_scale);
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  for_row_blocks(p.N, std::max(p.K, groups * p.M), [&](int64_t first, int64_t count) {
    const auto columns = [&](const Tensor& t) {  // [groups, 1, count]
      return aten::unsqueeze(aten::to(aten::narrow(t, 1, first, count), ScalarType::Float), 1);
    };
    const Tensor q = aten::reshape(codes_of(p, of.weight, first, count), {count, groups, p.group_size});
    const Tensor products = aten::mul(call("aten::bmm", "", x, permute(q, {1, 2, 0})), row_scale);
    const Tensor of_groups =
        aten::add(aten::mul(products, columns(of.weight.scale)), aten::mul(sums, columns(*of.weight.zero_point)));
    aten::copy_(aten::narrow(y2d, 1, first, count), with_bias(of, aten::sum(of_groups, 0), first, count));
  });
  return y;
}

// Any other blocks: products of what the codes stand for, in float32.
Tensor by_blocks(const LinearProblem& p, const Operands& of) {
  const int64_t scales_of_row = of.input_scale->size(of.input_scale->dim() - 1);
  const Tensor scales = spread(aten::reshape(*of.input_scale, {p.M, scales_of_row}), p.input_group_size, p.K);
  const Tensor x = aten::mul(aten::to(of.input, ScalarType::Float), aten::reshape(scales, output_sizes(of.input, p.K)));
  return linear_by_blocks(
      p, x, [&](int64_t first, int64_t count) { return dequantized_rows(p, of.weight, first, count); }, of.bias);
}

OptionalTensor no_kernel(const LinearProblem& /*p*/, const Operands& /*of*/) { return std::nullopt; }

}  // namespace

Tensor scaled_product(const LinearProblem& p, const Operands& of) {
  if (p.experts > 0) return by_expert("ao::scaled_mm", p, of);
  if (p.M == 0 || p.N == 0) return aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (is_by_groups(p.code)) return by_groups(p, of);
  return is_rowwise(p) ? by_rows(p, of) : by_blocks(p, of);
}

Tensor scaled_mm(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale, int64_t code,
                 const OptionalTensor& bias, const OptionalIntegers& input_block, const OptionalIntegers& block_size,
                 const OptionalTensor& zero_point, const OptionalTensor& offsets, std::optional<ScalarType> out_dtype) {
  return scaled_mm_by<no_kernel>(input, weight, input_scale, scale, code, bias, input_block, block_size, zero_point, offsets,
                                 out_dtype);
}

Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  return scaled_mm_rowwise_by<no_kernel>(input, weight, input_scale, weight_scale, bias, out_dtype);
}

}  // namespace aoext::generic
