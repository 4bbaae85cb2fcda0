#include "cpu/int4pack_gemm.h"

#include <type_traits>

#include "cpu/plan.h"

namespace aoext::cpu {

void int4pack_gemm(int64_t M, const void* x, const Int4PackWeight& weight, void* y, const ParallelFor& parallel_for) {
  constexpr int64_t kBytes = 2;  // of a bfloat16
  const int64_t N = weight.N;
  const InputRows rows{x, Element::bf16, kBytes, M, weight.K};
  const auto store = [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
    kernels().scale_row(Element::bf16, sums, 1.0f, row_scales, nullptr, static_cast<char*>(y) + (m * N + first) * kBytes, count);
  };
  LinearProblem p{};
  p.code = Code::int4, p.input = p.output = ScalarType::BFloat16;
  p.M = M, p.N = N, p.K = weight.K, p.group_size = weight.group_size;
  with_kernel(plan_int4pack(Choice(p)), [&](const auto& kernel) {
    using Kernel = std::decay_t<decltype(kernel)>;
    if constexpr (std::is_same_v<Kernel, GemmInt4> || std::is_same_v<Kernel, GemmInt4Codes>)
      gemm_product<float>(kernel, rows, N, all_panels(N), weight, parallel_for, store);
  });
}

}  // namespace aoext::cpu
