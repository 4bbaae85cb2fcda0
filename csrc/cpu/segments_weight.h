// 8-bit weights with a scale a block, as products by 8-bit x take them that has such scales too: by segments of k, each of one
// scale on either side.
#pragma once

#include "cpu/blockwise_weight.h"
#include "cpu/plan.h"

namespace aoext::cpu {

struct SegmentsWeight {
  static constexpr bool kInt4 = false;
  const char* values;
  Element value_element;
  const char* scales;  // [ceil(N / block_n), blocks]
  Element scale_element;
  int64_t scale_bytes, N, K, block_n, blocks, segment, segments_of_block, segments_of_x;

  SegmentsWeight(const LinearProblem& p, const BlockwiseWeight& weight)
      : values(weight.codes),
        value_element(weight.type),
        scales(weight.scale),
        scale_element(weight.scale_element),
        scale_bytes(weight.scale_row_bytes / weight.groups),
        N(p.N),
        K(p.K),
        block_n(p.block_n),
        blocks(weight.groups),
        segment(segment_of(p)),
        segments_of_block(ceil_div(p.group_size, segment)),
        segments_of_x(ceil_div(p.input_group_size, segment)) {}

  class Panel {
   public:
    explicit Panel(const SegmentsWeight& w) : w_(w), scales_(w.blocks * kPanel), ones_(kPanel, 1.0f) {}

    // Stages scales as floats [blocks, kPanel]; the last row's stand for those that don't exist.
    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      first_ = first;
      const int64_t of_block = w_.segment * w_.segments_of_block, block = begin / of_block;
      const void* rows[kPanel];
      for (int64_t i = 0; i < kPanel; ++i) {
        const int64_t row = (first + std::min(i, count - 1)) / w_.block_n;
        rows[i] = w_.scales + (row * w_.blocks + block) * w_.scale_bytes;
      }
      kernels().rows_to_columns(w_.scale_element, rows, ceil_div(end, of_block) - block, &scales_[block * kPanel]);
    }

    SegmentScales scales(const float* of_x, int64_t of_row) const {
      return {w_.segment, of_x, of_row, w_.segments_of_x, scales_.data(), w_.segments_of_block};
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
    std::vector<float> scales_, ones_;
  };
};

}  // namespace aoext::cpu
