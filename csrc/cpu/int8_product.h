// int8 × int8 → int32 sums, exact.
#pragma once

#include "cpu/plan.h"
#include "cpu/tile_product.h"

namespace aoext::cpu {

// Calls store(m, first, count, sums, row_scales) as tile_product does.
template <class Store>
void int8_product(const LinearProblem& p, const Plan& plan, const Tensor& input, const RowwiseWeight& weight,
                  const Store& store) {
  if (plan.algorithm == Algorithm::values) {
    const Tensor rows = aten::contiguous(input);
    const int8_t* const x = static_cast<const int8_t*>(rows.const_data_ptr());
    torch::stable::parallel_for(0, ceil_div(p.N, kTile), grain(kTile, p.K), [&](int64_t begin, int64_t end) {
      RowwiseWeight::Tile tile(weight);
      std::vector<int32_t> sums(p.M * kTile);
      for (int64_t first = begin * kTile; first < std::min(end * kTile, p.N); first += kTile) {
        const int64_t count = std::min<int64_t>(kTile, p.N - first);
        tile.move(first, count, 0, p.K);
        kernels().dot_i8(x, p.M, reinterpret_cast<const int8_t*>(tile.values(0)), count, p.K,
                         reinterpret_cast<int32_t (*)[kTile]>(sums.data()));
        for (int64_t m = 0; m < p.M; ++m) store(m, first, count, &sums[m * kTile], tile.row_scales());
      }
    });
    return;
  }
  const Tensor x = aten::contiguous(input);
  tile_product<int32_t>(*kernels().i8, input_rows(p, x), p.N, weight, store);
}

}  // namespace aoext::cpu
