// Weight-only int4: few input rows meet the nibbles themselves; for more, nibbles become rows in cache that are then multiplied.
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

// The product from the nibbles themselves.
void dot_nibbles(const LinearProblem& p, const Tensor& input, const Int4Weight& weight, const Output& output) {
  const int64_t ld = (p.K + kInt4Pad - 1) / kInt4Pad * kInt4Pad, groups = p.K / p.group_size;
  const std::vector<float> rows = float_rows(p, input, p.K);
  std::vector<float> x(p.M * ld), group_sums(p.M * groups);
  for (int64_t m = 0; m < p.M; ++m)
    kernels().arrange_int4(&rows[m * p.K], p.K, p.group_size, &x[m * ld], &group_sums[m * groups]);
  using Tile = Int4Weight::Tile;
  multiply_tiles(p, weight, output, 0, [&](const Tile& tile, int64_t i, int rows, float*, float (*sums)[kTileRows]) {
    kernels().dot_int4(x.data(), ld, group_sums.data(), static_cast<int>(p.M), tile.rows(i), rows, sums);
  });
}

Tensor int4_linear(const LinearProblem& p, const Tensor& input, const Int4Weight& weight, const OptionalTensor& bias) {
  const Plan plan = plan_int4(p);
  if (plan.algorithm != Algorithm::nibbles) return linear(p, plan, input, weight, nullptr, bias);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M > 0 && p.N > 0) dot_nibbles(p, input, weight, Output(p, y, nullptr, bias));
  return y;
}

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point) {
  const LinearProblem p = check_bf16i4bf16_rowwise(input, weight, scale, zero_point);
  return int4_linear(p, input, Int4Weight(p, weight, scale, zero_point), std::nullopt);
}

Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias) {
  const LinearProblem p = check_bf16i4bf16_rowwise_bias(input, weight, scale, zero_point, bias);
  return int4_linear(p, input, Int4Weight(p, weight, scale, zero_point), bias);
}

}  // namespace

AOEXT_REGISTER(CPU, bf16i4bf16_rowwise, &bf16i4bf16_rowwise)
AOEXT_REGISTER(CPU, bf16i4bf16_rowwise_bias, &bf16i4bf16_rowwise_bias)

}  // namespace aoext::cpu
