// Weights with a scale a block by few rows of x: Algorithm::gemv_blockwise.
#pragma once

#include "cpu/blockwise_weight.h"
#include "cpu/gemv.h"

namespace aoext::cpu {

inline const GemvBlockwise& gemv_blockwise(const Plan& plan, const BlockwiseWeight& weight) {
  const Kernels& k = kernels();
  const bool by_bf16 = plan.compute == ScalarType::BFloat16;
  if (weight.is_lut4()) return by_bf16 ? *k.gemv_lut4_bf16 : *k.gemv_lut4_f32;
  return by_bf16 ? *k.gemv_blockwise_bf16 : *k.gemv_blockwise_f32;
}

// M rows of x, which are those that `order` names, or all.
inline void multiply_gemv_blockwise(const LinearProblem& p, const GemvBlockwise& gemv, const PackedRows& x, int64_t M,
                                    const BlockwiseWeight& weight, const Output& output, const std::vector<int64_t>& order = {}) {
  each_panel(
      p, weight, output,
      [&](BlockwiseWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
        panel.move(first, count, 0, p.K);
        gemv.dot(x.data(), x.stride(), M, panel.rows(0), count, p.K, sums);
      },
      order);
}

}  // namespace aoext::cpu
