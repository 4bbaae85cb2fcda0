// int8 × int8 → int32 sums, exact.
#pragma once

#include "cpu/gemm.h"
#include "cpu/parallel.h"
#include "cpu/weights.h"

namespace aoext::cpu {

// Calls store(m, first, count, sums, row_scales) as gemm_product does.
template <class Store>
void int8_product(const LinearProblem& p, Kernel kernel, const InputRows& x, const Panels& panels, const RowwiseWeight& weight,
                  const Store& store) {
  if (kernel == Kernel::gemm_i8) return gemm_product<int32_t>(*kernels().gemm_i8, x, p.N, panels, weight, kParallelFor, store);
  const int8_t* const rows = static_cast<const int8_t*>(x.data);
  kParallelFor(panels.end - panels.begin, grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    RowwiseWeight::Panel panel(weight);
    std::vector<int32_t> sums(p.M * kPanel);
    for (int64_t t = panels.begin + begin; t < panels.begin + end; ++t) {
      const int64_t first = t * kPanel, count = std::min<int64_t>(kPanel, p.N - first);
      panel.move(first, count, 0, p.K);
      kernels().gemv_i8->dot(rows, p.M, reinterpret_cast<const int8_t*>(panel.values(0)), count, p.K,
                             reinterpret_cast<int32_t (*)[kPanel]>(sums.data()));
      for (int64_t m = 0; m < p.M; ++m) store(m, first, count, &sums[m * kPanel], panel.row_scales());
    }
  });
}

}  // namespace aoext::cpu
