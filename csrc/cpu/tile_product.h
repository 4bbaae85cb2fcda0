// Algorithm::tiles (tiles.h) on torch's tensors and threads.
#pragma once

#include "common/dispatcher.h"
#include "cpu/tiles.h"
#include "cpu/weights.h"

namespace aoext::cpu {

template <class Sum, class Weight, class Store>
void tile_product(const Tiles& tiles, const LinearProblem& p, const Tensor& input, const Weight& weight, const Store& store) {
  const Tensor x = aten::contiguous(input);
  const InputRows rows{x.const_data_ptr(), element(p.input), static_cast<int64_t>(x.element_size()), p.M, p.K};
  const auto parallel_for = [](int64_t n, int64_t grain, const auto& f) { torch::stable::parallel_for(0, n, grain, f); };
  tile_product<Sum>(tiles, rows, p.N, weight, parallel_for, store);
}

}  // namespace aoext::cpu
