#include "cpu/int4pack_gemm.h"

#include "cpu/gemm_int4.h"

namespace aoext::cpu {

void int4pack_gemm(int64_t M, const void* x, const Int4PackWeight& weight, void* y, const ParallelFor& parallel_for) {
  constexpr int64_t kBytes = 2;  // of a bfloat16
  const int64_t N = weight.N;
  const InputRows rows{x, Element::bf16, kBytes, M, weight.K};
  const auto store = [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
    shared_kernels().scale_row(Element::bf16, sums, 1.0f, row_scales, nullptr, static_cast<char*>(y) + (m * N + first) * kBytes,
                               count);
  };
  with_gemm_int4_bf16(N, weight.group_size,
                      [&](const auto& gemm) { gemm_product<float>(gemm, rows, N, weight, parallel_for, store); });
}

}  // namespace aoext::cpu
