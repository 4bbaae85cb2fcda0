// 8-bit weights with a scale a block, as products by 8-bit x take them that has such scales too: by segments of k, each of one
// scale on either side.
#pragma once

#include "cpu/plan.h"
#include "cpu/weights.h"

namespace aoext::cpu {

struct SegmentsWeight {
  static constexpr bool kInt4 = false;
  const char* values;
  Element value_element;
  const char* scales;  // [ceil(N / block_n), blocks]
  Element scale_element;
  int64_t scale_bytes, N, K, block_n, blocks, segment, segments_of_block, segments_of_x;

  SegmentsWeight(const LinearProblem& p, const Tensor& weight, const Tensor& scale)
      : values(static_cast<const char*>(weight.const_data_ptr())),
        value_element(element(storage(p.code))),
        scales(static_cast<const char*>(scale.const_data_ptr())),
        scale_element(element(p.scale)),
        scale_bytes(static_cast<int64_t>(scale.element_size())),
        N(p.N),
        K(p.K),
        block_n(p.block_n),
        blocks(ceil_div(p.K, p.group_size)),
        segment(segment_of(p)),
        segments_of_block(ceil_div(p.group_size, segment)),
        segments_of_x(ceil_div(p.input_group_size, segment)) {}

  class Panel {
   public:
    explicit Panel(const SegmentsWeight& w)
        : w_(w), staged_(ceil_div(w.K, w.segment) * kPanel), row_(w.blocks), ones_(kPanel, 1.0f) {}

    // Stages scales as floats [segments, kPanel], a run of channels that share them at a time.
    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      first_ = first;
      const int64_t from = begin / w_.segment, to = ceil_div(end, w_.segment);
      const int64_t block = from / w_.segments_of_block, blocks = (to - 1) / w_.segments_of_block + 1 - block;
      for (int64_t i = 0, same = 0; i < count; i += same) {
        const int64_t row = (first + i) / w_.block_n;
        same = std::min(count - i, (row + 1) * w_.block_n - first - i);
        kernels().to_float(w_.scale_element, w_.scales + (row * w_.blocks + block) * w_.scale_bytes, row_.data(), blocks);
        for (int64_t b = 0, s = from; b < blocks; ++b)
          for (const int64_t last = std::min((block + b + 1) * w_.segments_of_block, to); s < last; ++s)
            for (int64_t j = i; j < i + same; ++j) staged_[s * kPanel + j] = row_[b];
      }
    }

    SegmentScales scales(const float* of_x, int64_t of_row) const {
      return {w_.segment, of_x, of_row, w_.segments_of_x, staged_.data()};
    }
    void pack(const GemmSegments& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      const BlockRows rows{block.count, w_.K, values(0) + next.begin, next.stride, next.n};
      gemm.pack_w(w_.value_element, values(block.i) + block.begin, rows, w_.segment, block.begin, block.n, out);
    }
    const float* row_scales() const { return ones_.data(); }

   private:
    const char* values(int64_t i) const { return w_.values + (first_ + i) * w_.K; }

    const SegmentsWeight& w_;
    int64_t first_ = 0;
    std::vector<float> staged_, row_, ones_;
  };
};

}  // namespace aoext::cpu
