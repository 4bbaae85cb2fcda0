// Algorithm::gemm, gemm_bf16_limbs and gemm_int4_scaled on torch's tensors, with float32 sums.
#pragma once

#include "cpu/gemm.h"
#include "cpu/gemm_int4.h"
#include "cpu/output.h"
#include "cpu/plan.h"

namespace aoext::cpu {

// f(gemm) with the one that a plan chose for such a weight.
template <class Weight, class F>
void with_gemm(const Plan& plan, const Weight& weight, const F& f) {
  const Kernels& k = kernels();
  const bool limbs = plan.algorithm == Algorithm::gemm_bf16_limbs, of_floats = plan.compute == ScalarType::Float;
  if constexpr (Weight::kInt4) {
    if (limbs) return f(*k.gemm_int4_codes_limbs);
    if (plan.algorithm == Algorithm::gemm_int4_int8) return f(of_floats ? *k.gemm_int4_codes_f32 : *k.gemm_int4_i8);
    const SharedKernels& shared = shared_kernels();
    if (of_floats) return f(*shared.gemm_int4_f32);
    if (plan.algorithm == Algorithm::gemm && shared.gemm_int4_codes != nullptr) return f(*shared.gemm_int4_codes);
    f(*shared.gemm_int4_bf16);
  } else if constexpr (Weight::kBlockwise) {
    const bool by_groups = plan.algorithm == Algorithm::gemm_groups;
    if (of_floats) return f(*k.gemm_blockwise_f32);
    if (weight.is_lut4()) return f(limbs ? *k.gemm_lut4_groups_limbs : by_groups ? *k.gemm_lut4_groups : *k.gemm_lut4_bf16);
    f(limbs ? *k.gemm_8bit_groups_limbs : by_groups ? *k.gemm_8bit_groups : *k.gemm_8bit_bf16);
  } else {
    f(limbs ? *k.gemm_bf16_limbs : of_floats ? *k.gemm_f32 : *k.gemm_bf16);
  }
}

// The same of Algorithm::gemm_segments.
inline const GemmSegments& gemm_segments(const Plan& plan) {
  const Kernels& k = kernels();
  if (plan.compute == ScalarType::Float) return *k.gemm_segments_f32;
  return plan.compute == ScalarType::Char ? *k.gemm_segments_i8 : *k.gemm_segments_bf16;
}

// Rows of x are those that `order` names, or all.
template <class Weight>
void multiply_gemm(const Plan& plan, const InputRows& x, const Weight& weight, const Output& output,
                   const std::vector<int64_t>& order = {}) {
  const auto store = [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
    output.store(order.empty() ? m : order[m], first, count, sums, row_scales);
  };
  with_gemm(plan, weight, [&](const auto& gemm) { gemm_product<float>(gemm, x, output.N, weight, kParallelFor, store); });
}

}  // namespace aoext::cpu
