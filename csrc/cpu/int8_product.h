// int8 × int8 → int32 sums, from the weight as it lies.
#pragma once

#include "cpu/linear.h"
#include "generic/generic.h"

namespace aoext::cpu {

// Algorithm::panel: ATen's product of x [M, K] and rows w of the weight, exact in either dtype.
inline Tensor int8_panel(const Plan& plan, const Tensor& x, const Tensor& w) {
  if (plan.compute == ScalarType::Float) return generic::int8_mm(x, w);
  return call("aten::_int_mm", "", x, aten::transpose(w));
}

// Algorithm::dot.
//
// Calls store(m, first, count, acc) with the int32 sums of columns [first, first + count) of row m, from
// several threads; first is a multiple of kTile and count at most kTile.
template <class Store>
void int8_dot(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Store& store) {
  constexpr int64_t kBlock = 256;  // input rows at a time: their sums stay in cache
  const Tensor rows = aten::contiguous(input);
  const int8_t* x = static_cast<const int8_t*>(rows.const_data_ptr());
  const int64_t ld = padded(p.K);
  std::vector<int8_t> copy;
  if (ld != p.K) {
    copy.resize(p.M * ld);
    for (int64_t m = 0; m < p.M; ++m) std::copy(x + m * p.K, x + (m + 1) * p.K, &copy[m * ld]);
    x = copy.data();
  }
  const int8_t* w = static_cast<const int8_t*>(weight.const_data_ptr());
  torch::stable::parallel_for(0, (p.N + kTile - 1) / kTile, grain(kTile, p.K), [&](int64_t begin, int64_t end) {
    std::vector<int32_t> acc(std::min(p.M, kBlock) * kTile);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kTile, count = std::min(kTile, p.N - first);
      for (int64_t block = 0; block < p.M; block += kBlock) {
        const int64_t block_rows = std::min(kBlock, p.M - block);
        for (int64_t i = 0; i < count; i += kTileRows) {
          const int n = static_cast<int>(std::min<int64_t>(kTileRows, count - i));
          for (int64_t m = 0; m < block_rows; m += kTileRows) {
            const int tokens = static_cast<int>(std::min<int64_t>(kTileRows, block_rows - m));
            int32_t sums[kTileRows][kTileRows] = {};
            kernels().dot_i8(x + (block + m) * ld, ld, tokens, w + (first + i) * p.K, p.K, n, p.K, sums);
            for (int j = 0; j < tokens; ++j) std::copy(sums[j], sums[j] + n, &acc[(m + j) * kTile + i]);
          }
        }
        for (int64_t m = 0; m < block_rows; ++m) store(block + m, first, count, &acc[m * kTile]);
      }
    }
  });
}

}  // namespace aoext::cpu
