// Algorithm::tiles (tiles.h) on torch's tensors and threads.
#pragma once

#include "common/dispatcher.h"
#include "cpu/tiles.h"
#include "cpu/weights.h"

namespace aoext::cpu {

template <class Sum, class Weight, class Store>
void tile_product(const Tiles& tiles, const InputRows& rows, int64_t N, const Weight& weight, const Store& store) {
  const auto parallel_for = [](int64_t n, int64_t grain, const auto& f) { torch::stable::parallel_for(0, n, grain, f); };
  tile_product<Sum>(tiles, rows, N, weight, parallel_for, store);
}

// All rows of a tensor that is contiguous.
inline InputRows input_rows(const LinearProblem& p, const Tensor& x) {
  return {x.const_data_ptr(), element(p.input), static_cast<int64_t>(x.element_size()), p.M, p.K};
}

}  // namespace aoext::cpu
