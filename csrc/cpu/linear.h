// A product with a quantised weight by the kernel that was chosen.
#pragma once

#include <optional>

#include "cpu/gemv_e2m1.h"
#include "cpu/gemv_int4.h"

namespace aoext::cpu {

// The kernel is one that multiplies such a weight.
template <class Weight>
void multiply(Kernel kernel, const Product& product, const Weight& weight) {
  with_kernel(kernel, [&](const auto& k) {
    if constexpr (requires { multiply_by(k, product, weight); }) multiply_by(k, product, weight);
  });
}

// Scales of x meet the sums of a weight that has scales of rows or of groups; by blocks on both sides they meet x on the way.
template <class Weight>
Tensor linear(const LinearProblem& p, Kernel kernel, const Operands& of, const Weight& weight) {
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(of.input);
  InputRows rows = input_rows(p, x);
  const bool by_blocks = Weight::kBlockwise && of.input_scale != nullptr;
  const OptionalTensor block_scales = by_blocks ? OptionalTensor(aten::contiguous(*of.input_scale)) : std::nullopt;
  if (by_blocks) {
    rows.scales = static_cast<const float*>(block_scales->const_data_ptr());
    rows.scales_of_row = ceil_div(p.K, p.input_group_size);
  }
  std::optional<SubtractedZeroPoints> zero_points;
  if (p.subtracts_zero_point) zero_points.emplace(p, rows, of.weight.scale, *of.weight.zero_point);
  const Output output(p, y, rows, weight, by_blocks ? nullptr : of.input_scale, of.bias, zero_points ? &*zero_points : nullptr);
  multiply(kernel, {p, rows, output}, weight);
  return y;
}

}  // namespace aoext::cpu
