// 8-bit × 8-bit, both with a scale a block: few rows of x as the values that they stand for, many by the sums of segments, which
// meet the scales.
#include "cpu/scaled_mm_blockwise.h"

#include "cpu/gemv_blockwise.h"
#include "cpu/multiply_gemm.h"
#include "cpu/segments_weight.h"
#include "generic/register.h"

namespace aoext::cpu {

Tensor multiply_by_blocks(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                          const Tensor& weight_scale, const OptionalTensor& bias) {
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input), x_scale = aten::contiguous(input_scale);
  InputRows rows = input_rows(p, x);
  rows.scales = static_cast<const float*>(x_scale.const_data_ptr());
  rows.scales_of_row = ceil_div(p.K, p.input_group_size);
  const BlockwiseWeight blocks(p, weight, weight_scale);
  const Output output(p, y, rows, blocks, nullptr, bias);
  const Plan plan = plan_scaled_blockwise(p);
  if (plan.algorithm == Algorithm::gemv_blockwise) {
    const GemvBlockwise& gemv = gemv_blockwise(plan, blocks);
    multiply_gemv_blockwise(p, gemv, PackedRows(rows, p.input_group_size, gemv), p.M, blocks, output);
    return y;
  }
  gemm_product<float>(gemm_segments(plan), rows, p.N, SegmentsWeight(p, weight, weight_scale), kParallelFor,
                      [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
                        output.store(m, first, count, sums, row_scales);
                      });
  return y;
}

namespace {

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
  return multiply_by_blocks(p, input, weight, input_scale, weight_scale, bias);
}

}  // namespace

AOEXT_REGISTER(CPU, scaled_mm_blockwise, &explain<plan_scaled_blockwise>, &scaled_mm_blockwise)

}  // namespace aoext::cpu
