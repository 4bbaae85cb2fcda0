// Weight-only int8 with a scale and an integer zero point a block on any device.
//
// Few rows of x have two products, one with the codes, by the device's own kernel, and a small one beside it: inside a block z ·
// s is one number, so
//
//   y = x · (q · s)ᵀ − Σ_block(x) · (z · s)ᵀ,    Σ_block(x) [M, K/block_k].
//
// Both are float32, because where x has a mean both are far above their difference. A device that has no kernel for many rows of
// float32 multiplies 16-bit ones as they are, by weights of their dtype: q − z has 8 bits and a sign, and only its scale rounds.
#include <optional>

#include "common/sizes.h"
#include "generic/blockwise.h"
#include "generic/generic.h"

namespace aoext::generic {
namespace {

constexpr int64_t kFewRows = 16;
constexpr int64_t kRoundedChannels = 64;  // fewer may nearly cancel in all of a row

struct Arguments {
  const Tensor &input, &weight, &scale, &zero_point;
  const Integers& block_size;
  const OptionalTensor& bias;
};

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

Tensor two_products(const LinearProblem& p, const Arguments& of) {
  const Tensor x = aten::to(of.input, ScalarType::Float);
  const Tensor y = call("ao::bf16i8bf16_blockwise", "", x, of.weight, of.scale, of.block_size, of.bias);
  const Tensor terms = aten::mul(aten::to(of.zero_point, ScalarType::Float), aten::to(of.scale, ScalarType::Float));
  Tensor beside = aten::mm(block_sums(p, aten::reshape(x, {p.M, p.K})), aten::transpose(terms));
  if (p.block_n > 1) beside = spread(beside, p.block_n, p.N);
  return aten::to(aten::subtract(y, aten::reshape(beside, output_sizes(of.input, p.N))), p.output);
}

Tensor by_rounded_weights(const LinearProblem& p, const Arguments& of) {
  const Tensor y = aten::empty({p.M, p.N}, p.output, of.input);
  const Tensor x = aten::contiguous(aten::reshape(of.input, {p.M, p.K}));
  const BlockwiseWeight weight{of.weight, of.scale, std::nullopt, std::nullopt, of.zero_point};
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    const Tensor w = aten::to(dequantize_rows(p, weight, first, count), p.output);
    const OptionalTensor bias = of.bias ? OptionalTensor(aten::narrow(*of.bias, 0, first, count)) : std::nullopt;
    aten::copy_(aten::narrow(y, 1, first, count), aten::linear(x, w, bias));
  });
  return aten::reshape(y, output_sizes(of.input, p.N));
}

}  // namespace

Tensor bf16i8bf16_blockwise_zp(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Integers& block_size, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16i8bf16_blockwise_zp(input, weight, scale, zero_point, block_size, bias);
  if (p.M == 0 || p.N == 0) return aten::empty(output_sizes(input, p.N), p.output, input);
  const Arguments of{input, weight, scale, zero_point, block_size, bias};
  const bool rounds = p.output != ScalarType::Float && p.N >= kRoundedChannels && (!bias || p.bias == p.output);
  return p.M > kFewRows && rounds ? by_rounded_weights(p, of) : two_products(p, of);
}

}  // namespace aoext::generic
