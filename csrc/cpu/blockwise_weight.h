// Weights with a scale a block [block_n, block_k], as the linear drivers ask for them (weights.h): codes of 8 bits, or of 4 bits
// that are looked up in a table of 16 floats. A scale of all of the weight meets the sums at the end.
#pragma once

#include <vector>

#include "cpu/weights.h"

namespace aoext::cpu {

struct BlockwiseWeight {
  static constexpr bool kInt4 = false, kBlockwise = true;
  const char *codes, *scale;
  Element type, scale_element;
  const float* table;  // null of 8-bit codes
  int64_t N, K, block_n, group_size, groups, scale_row_bytes, row_bytes;
  float global_scale;

  BlockwiseWeight(const LinearProblem& p, const WeightData& w)
      : codes(w.values),
        scale(w.scale),
        type(element(p.code)),
        scale_element(element(p.scale)),
        table(w.table),
        N(p.N),
        K(p.K),
        block_n(p.block_n),
        group_size(p.group_size),
        groups(ceil_div(p.K, p.group_size)),
        scale_row_bytes(groups * size_of(p.scale)),
        row_bytes(aoext::row_bytes(p.code, p.K)),
        global_scale(w.global_scale == nullptr ? 1.0f : *w.global_scale) {}

  bool is_lut4() const { return table != nullptr; }

  // The scale of each row, of a weight whose rows have one each or share it.
  std::vector<float> row_scales() const {
    std::vector<float> of_blocks(ceil_div(N, block_n)), of_rows(block_n == 1 ? 0 : N);
    kernels().to_float(scale_element, scale, of_blocks.data(), static_cast<int64_t>(of_blocks.size()));
    if (block_n == 1) return of_blocks;
    for (int64_t n = 0; n < N; ++n) of_rows[n] = of_blocks[n / block_n];
    return of_rows;
  }

  // A panel stages the scales of its blocks as floats, a row of them for each block, and, for a gemm that asks for it, as columns
  // [groups, kPanel].
  class Panel {
   public:
    explicit Panel(const BlockwiseWeight& w)
        : w_(w),
          stride_((ceil_div(w.groups, kScalesBeyond) + 1) * kScalesBeyond),
          staged_(kPanel * stride_ * sizeof(float)),
          global_(kPanel, w.global_scale) {
      std::fill_n(staged(0), kPanel * stride_, 0.0f);
    }

    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      const int64_t top = first / w_.block_n, bottom = (first + count - 1) / w_.block_n;
      first_ = first;
      if (top != top_ || bottom != bottom_ || begin != begin_ || end != end_) stage(top, bottom, begin, end);
      for (int64_t i = 0; i < kPanel; ++i) {
        const int64_t row = std::min(first + i, first + count - 1);
        rows_[i] = staged(row / w_.block_n - top);
      }
    }

    BlockwiseRows rows(int64_t i) const {
      const BlockwiseRows all{w_.type, w_.table, codes(0), w_.row_bytes, w_.group_size, rows_, columns_.data(), nullptr};
      return all.from(i);
    }
    void stage_columns(const GemmBlockwise& gemm, int64_t begin, int64_t end) {
      if (gemm.columns_of_scales == nullptr) return;
      columns_.resize(w_.groups * kPanel);
      gemm.columns_of_scales(rows_, begin / w_.group_size, (end - 1) / w_.group_size + 1, columns_.data());
    }
    void pack(const GemmBlockwise& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      const BlockwiseRows all = rows(0);
      const BlockRows of_block{block.count, w_.row_bytes, codes(0) + all.bytes(next.begin), all.bytes(next.stride),
                               all.bytes(next.n)};
      gemm.pack_w(rows(block.i), of_block, block.begin, block.n, out);
    }
    const float* row_scales() const { return global_.data(); }

   private:
    float* staged(int64_t block) const { return reinterpret_cast<float*>(staged_ + 0) + block * stride_; }
    const char* codes(int64_t i) const { return w_.codes + (first_ + i) * w_.row_bytes; }

    void stage(int64_t top, int64_t bottom, int64_t begin, int64_t end) {
      const int64_t group = begin / w_.group_size, count = (end - 1) / w_.group_size + 1 - group;
      const int64_t size = w_.scale_row_bytes / w_.groups;
      for (int64_t b = top; b <= bottom; ++b)
        kernels().to_float(w_.scale_element, w_.scale + b * w_.scale_row_bytes + group * size, staged(b - top) + group, count);
      top_ = top, bottom_ = bottom, begin_ = begin, end_ = end;
    }

    const BlockwiseWeight& w_;
    const int64_t stride_;
    int64_t first_ = 0, top_ = -1, bottom_ = -1, begin_ = 0, end_ = 0;  // what is staged
    const Scratch staged_;
    std::vector<float> columns_, global_;
    const float* rows_[kPanel] = {};
  };
};

}  // namespace aoext::cpu
