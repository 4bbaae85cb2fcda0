// Weight-only products on any device: dequantise a block of rows, multiply, next block.
#include "common/sizes.h"
#include "generic/products.h"
#include "generic/register.h"
#include "generic/weight_rows.h"

namespace aoext::generic {
namespace {

Tensor by_float32_rows(const LinearProblem& p, const Operands& of) {
  return linear_by_blocks(
      p, of.input, [&](int64_t first, int64_t count) { return dequantized_rows(p, of.weight, first, count); }, of.bias);
}

// Few rows of x with zero points to subtract have two products, one with the codes, by the device's own kernel, and a small one
// beside it: inside a block zero_point · scale is one number, so
//
//   y = x · (q · scale)ᵀ − Σ_block(x) · (zero_point · scale)ᵀ,    Σ_block(x) [M, K/block_k].
//
// Both are float32, because where x has a mean both are far above their difference. A device that has no kernel for many rows of
// float32 multiplies 16-bit ones as they are, by weights of their dtype: q − zero_point has 8 bits and a sign, and only its scale
// rounds.
constexpr int64_t kFewRows = 16;
constexpr int64_t kRoundedChannels = 64;  // fewer may nearly cancel in all of a row

// Σ_block(x), float32 [M, ceil(K / block_k)].
Tensor block_sums(const LinearProblem& p, const Tensor& x) {
  const int64_t whole = p.K / p.group_size, rest = p.K - whole * p.group_size;
  const auto sums = [&](int64_t first, int64_t blocks, int64_t length) {
    return aten::sum(aten::reshape(aten::narrow(x, 1, first, blocks * length), {p.M, blocks, length}), 2);
  };
  if (rest == 0) return sums(0, whole, p.group_size);
  const Tensor last = sums(p.K - rest, 1, rest);
  return whole == 0 ? last : aten::cat(sums(0, whole, p.group_size), last, 1);
}

Tensor two_products(const LinearProblem& p, const Operands& of) {
  const Tensor x = aten::to(of.input, ScalarType::Float);
  const OptionalTensor none;
  const Tensor y = call("ao::weight_only_linear", "", x, of.weight.values, of.weight.scale, static_cast<int64_t>(p.code),
                        optional(of.bias), OptionalIntegers(weight_block(p)), none, none, none, none);
  const Tensor terms =
      aten::mul(aten::to(*of.weight.zero_point, ScalarType::Float), aten::to(of.weight.scale, ScalarType::Float));
  Tensor beside = aten::mm(block_sums(p, aten::reshape(x, {p.M, p.K})), aten::transpose(terms));
  if (p.block_n > 1) beside = spread(beside, p.block_n, p.N);
  return aten::to(aten::subtract(y, aten::reshape(beside, output_sizes(of.input, p.N))), p.output);
}

Tensor by_rounded_weights(const LinearProblem& p, const Operands& of) {
  const Tensor y = aten::empty({p.M, p.N}, p.output, of.input);
  const Tensor x = aten::contiguous(aten::reshape(of.input, {p.M, p.K}));
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    const Tensor w = aten::to(dequantized_rows(p, of.weight, first, count), p.output);
    const OptionalTensor bias = of.bias == nullptr ? std::nullopt : OptionalTensor(aten::narrow(*of.bias, 0, first, count));
    aten::copy_(aten::narrow(y, 1, first, count), aten::linear(x, w, bias));
  });
  return aten::reshape(y, output_sizes(of.input, p.N));
}

Tensor with_subtracted_zero_points(const LinearProblem& p, const Operands& of) {
  const bool rounds = p.output != ScalarType::Float && p.N >= kRoundedChannels && (of.bias == nullptr || p.bias == p.output);
  return p.M > kFewRows && rounds ? by_rounded_weights(p, of) : two_products(p, of);
}

// By the seed, for which another repository may have a kernel for its device.
OptionalTensor of_another_repository(const LinearProblem& p, const Operands& of) {
  if (p.code != Code::int4 || p.experts > 0 || key_of(of.input)) return std::nullopt;
  const Weight& w = of.weight;
  return of.bias == nullptr ? call("ao::bf16i4bf16_rowwise", "", of.input, w.values, w.scale, *w.zero_point)
                            : call("ao::bf16i4bf16_rowwise_bias", "", of.input, w.values, w.scale, *w.zero_point, *of.bias);
}

}  // namespace

Tensor weight_only_product(const LinearProblem& p, const Operands& of) {
  if (p.experts > 0) return by_expert("ao::weight_only_linear", p, of);
  if (p.M == 0 || p.N == 0) return aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.subtracts_zero_point) return with_subtracted_zero_points(p, of);
  return by_float32_rows(p, of);
}

Tensor weight_only_linear(const Tensor& input, const Tensor& weight, const Tensor& scale, int64_t code,
                          const OptionalTensor& bias, const OptionalIntegers& block_size, const OptionalTensor& zero_point,
                          const OptionalTensor& table, const OptionalTensor& global_scale, const OptionalTensor& offsets) {
  return weight_only_linear_by<of_another_repository>(input, weight, scale, code, bias, block_size, zero_point, table,
                                                      global_scale, offsets);
}

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return by_float32_rows(p, {input, {weight, scale, &zero_point}});
}

// Through the dispatcher, so that a device with a kernel for the first operator alone gets it here too: of float32, whose result
// is not rounded before the bias is added.
Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  const Tensor product = call("ao::bf16i4bf16_rowwise", "", aten::to(input, ScalarType::Float), weight, scale, zero_point);
  return aten::to(aten::add(product, aten::to(bias, ScalarType::Float)), p.output);
}

}  // namespace aoext::generic
