// A product with a quantised weight by the kernel that was chosen.
#pragma once

#include <optional>

#include "cpu/gemv_e2m1.h"
#include "cpu/gemv_int4.h"
#include "cpu/gemv_planes.h"

namespace aoext::cpu {

// The kernel is one that multiplies such a weight.
template <class Weight>
void multiply(Kernel kernel, const Product& product, const Weight& weight) {
  with_kernel(kernel, [&](const auto& k) {
    if constexpr (requires { multiply_by(k, product, weight); }) multiply_by(k, product, weight);
  });
}

// By these panels of the weight. Scales of x meet the sums of a weight that has scales of rows or of groups; by blocks on both
// sides they meet x on the way.
template <class Weight>
void linear(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels, const Weight& weight) {
  InputRows rows = input_rows(p, d.input);
  if (Weight::kBlockwise && d.input_scale != nullptr) {
    rows.scales = d.input_scale;
    rows.scales_of_row = ceil_div(p.K, p.input_group_size);
  }
  std::optional<SubtractedZeroPoints> zero_points;
  if (p.subtracts_zero_point) zero_points.emplace(p, rows, d.weight, panels);
  const Output output(p, d, rows, weight, zero_points ? &*zero_points : nullptr);
  multiply(kernel, {p, rows, output, panels}, weight);
}

}  // namespace aoext::cpu
