// Weights with a scale a block to high precision, row by row.
#pragma once

#include "common/dispatcher.h"
#include "cpu/blockwise_weight.h"
#include "cpu/output.h"

namespace aoext::cpu {

inline Tensor dequantize_rows(const LinearProblem& p, const Tensor& like, const BlockwiseWeight& w) {
  const Tensor out = aten::empty({p.N, p.K}, p.output, like);
  char* const data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t row_bytes = p.K * static_cast<int64_t>(out.element_size());
  kParallelFor(ceil_div(p.N, kPanel), grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    BlockwiseWeight::Panel panel(w);
    std::vector<float> floats(p.K);
    for (int64_t first = begin * kPanel; first < std::min(end * kPanel, p.N); first += kPanel) {
      const int64_t count = std::min<int64_t>(kPanel, p.N - first);
      panel.move(first, count, 0, p.K);
      for (int64_t i = 0; i < count; ++i) {
        kernels().dequantize_blockwise(panel.rows(0), i, 0, p.K, floats.data());
        char* const row = data + (first + i) * row_bytes;
        shared_kernels().scale_row(element(p.output), floats.data(), w.global_scale, nullptr, nullptr, row, p.K);
      }
    }
  });
  return out;
}

}  // namespace aoext::cpu
