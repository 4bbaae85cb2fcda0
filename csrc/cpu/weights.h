// Weights as the linear drivers ask for them.
//
// A weight has a Panel, a thread's view of up to kPanel consecutive rows, of which it will ask for elements [begin, end) until it
// moves on. `pack` makes a block of some of them for a gemm, whose sums row_scales() multiply, while what is next is fetched.
// int4 meets the scales of its groups on the way and has row scales of 1, and what products take out of weights comes beside them
// (zero_points.h).
//
// A new format is a weight of its own here, which packs with its loaders in kernels/.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/data.h"
#include "cpu/gemm.h"
#include "cpu/isa.h"

namespace aoext::cpu {

// n elements as float32; none of null.
inline std::vector<float> floats(Element type, const char* data, int64_t n) {
  std::vector<float> out(data == nullptr ? 0 : n);
  if (data != nullptr) kernels().to_float(type, data, out.data(), n);
  return out;
}

// Codes in groups with zero points that are added. Kernels read nibbles: a thread widens codes of fewer bits to them, a panel at
// a time, in cache.
struct Int4Weight {
  static constexpr bool kInt4 = true, kBlockwise = false;
  Code code;
  const uint8_t* packed;
  const char *scale, *zero_point;
  ScalarType scale_dtype;
  int64_t N, K, group_size, row_bytes;
  void (*widen)(const uint8_t* packed, int64_t bytes, uint8_t* nibbles);  // null of nibbles

  Int4Weight(const LinearProblem& p, const WeightData& w)
      : code(p.code),
        packed(reinterpret_cast<const uint8_t*>(w.values)),
        scale(w.scale),
        zero_point(w.zero_point),
        scale_dtype(p.scale),
        N(p.N),
        K(p.K),
        group_size(p.group_size),
        row_bytes(aoext::row_bytes(p.code, p.K)),
        widen(p.code == Code::int2 ? kernels().widen_int2 : nullptr) {}

  // Scales lie [K/group_size, N]: a panel stages its columns, a cache line of them per group, as floats [K/group_size, kPanel].
  class Panel {
   public:
    explicit Panel(const Int4Weight& w)
        : w_(w),
          groups_(w.K / w.group_size),
          ones_(kPanel, 1.0f),
          nibbles_(w.widen == nullptr ? nullptr : new uint8_t[kPanel * w.K / 2]) {}

    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      first_ = first;
      scale_.resize(groups_ * kPanel);
      zero_point_.resize(groups_ * kPanel);
      const int64_t group = begin / w_.group_size, groups = (end - 1) / w_.group_size + 1 - group;
      stage(w_.scale, count, group, groups, scale_.data());
      stage(w_.zero_point, count, group, groups, zero_point_.data());
      widen(count, begin, end);
    }

    // Rows from `first` on; nibbles of the panel at hand where they are widened.
    Int4Panel as_it_lies(int64_t first) const {
      const int64_t size = scale_bytes(), at = first * size;
      return {w_.widen == nullptr ? stored(first) : nibbles(0),
              w_.scale + at,
              w_.zero_point + at,
              element(w_.scale_dtype),
              size,
              w_.N * size,
              w_.group_size};
    }
    // The same, with scales elsewhere where they are not a whole panel's.
    Int4Panel in_whole_vectors(int64_t first, int64_t count) {
      if (count == kPanel) {
        bring(first, count);
        return as_it_lies(first);
      }
      move(first, count, 0, w_.K);
      return {packed(0),
              reinterpret_cast<const char*>(scale_.data()),
              reinterpret_cast<const char*>(zero_point_.data()),
              Element::fp32,
              sizeof(float),
              kPanel * sizeof(float),
              w_.group_size};
    }
    // acc = the product of rows of x in limbs and `count` rows of w from `first` on, by scales that are staged. Those of the
    // panel behind it are staged on the way: panels come in turn.
    void dot_staged(const GemvLimbsStaged& gemv, const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M,
                    int64_t first, int64_t count, float (*acc)[kPanel]) {
      const auto staged = [&](int64_t panel) {
        std::vector<float>& to = staged_[panel / kPanel % 2];
        to.resize(static_cast<size_t>((groups_ + M) * kPanel));
        return StagedScales{to.data(), to.data() + groups_ * kPanel};
      };
      bring(first, count);
      const int64_t behind = first + kPanel, rows_behind = std::clamp<int64_t>(w_.N - behind, 0, kPanel);
      const StagedScales now = staged(first);
      if (staged_first_ != first) gemv.stage(of_x, M, as_it_lies(first), count, w_.K, now);
      gemv.dot(x, x_stride, of_x, M, as_it_lies(first), count, w_.K, now, {as_it_lies(behind), rows_behind, staged(behind)}, acc);
      staged_first_ = behind;
    }
    Int4Row int4(int64_t i) const { return {packed(i), &scale_[i], &zero_point_[i], w_.group_size}; }
    template <class Gemm>
    void pack(const Gemm& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      const int64_t codes = layout(w_.code).values;
      const char* const fetched = reinterpret_cast<const char*>(stored(first_) + next.begin / codes);
      gemm.pack_w(int4(block.i), {block.count, w_.K / 2, fetched, next.stride / codes, next.n / codes}, block.begin, block.n,
                  out);
    }
    // What move(first, …, begin, end) will read.
    ScalesAhead scales_ahead(int64_t first, int64_t begin, int64_t end) const {
      const int64_t size = scale_bytes(), stride = w_.N * size, group = begin / w_.group_size, at = group * stride + first * size;
      const int64_t last = (end - 1) / w_.group_size + 1,
                    groups = first < w_.N && last - group <= kGroupsAhead ? last - group : 0;
      return {{w_.scale + at, stride, groups, kPanel * size}, {w_.zero_point + at, stride, groups, kPanel * size}};
    }
    ZeroPointsBeside take_zero_points_out(int64_t begin, int64_t end) {
      return cpu::take_zero_points_out(scale_, zero_point_, beside_, kReachOfInt4, w_.group_size, begin, end);
    }
    void shift_zero_points(float offset, int64_t begin, int64_t end) {
      cpu::shift_zero_points(scale_, zero_point_, offset, w_.group_size, begin, end);
    }
    const float* row_scales() const { return ones_.data(); }

   private:
    const uint8_t* stored(int64_t row) const { return w_.packed + row * w_.row_bytes; }
    uint8_t* nibbles(int64_t i) const { return nibbles_.get() + i * (w_.K / 2); }
    const uint8_t* packed(int64_t i) const { return w_.widen == nullptr ? stored(first_ + i) : nibbles(i); }
    void bring(int64_t first, int64_t count) {
      first_ = first;
      widen(count, 0, w_.K);
    }
    void widen(int64_t count, int64_t begin, int64_t end) const {
      if (w_.widen == nullptr) return;
      const int64_t codes = layout(w_.code).values;
      for (int64_t i = 0; i < count; ++i)
        w_.widen(stored(first_ + i) + begin / codes, (end - begin) / codes, nibbles(i) + begin / 2);
    }
    int64_t scale_bytes() const { return w_.scale_dtype == ScalarType::Float ? 4 : 2; }
    void stage(const char* data, int64_t count, int64_t group, int64_t groups, float* out) const {
      const int64_t size = scale_bytes(), stride = w_.N * size;
      kernels().columns_to_float(element(w_.scale_dtype), data + group * stride + first_ * size, stride, groups, count,
                                 out + group * kPanel);
    }

    const Int4Weight& w_;
    int64_t first_ = 0, groups_, staged_first_ = -1;
    std::vector<float> scale_, zero_point_, beside_, ones_, staged_[2];
    const std::unique_ptr<uint8_t[]> nibbles_;
  };
};

struct RowwiseWeight {
  static constexpr bool kInt4 = false, kBlockwise = false;
  const char* values;
  Element value_element;
  std::vector<float> scales;  // empty where nobody asks for them
  int64_t K;

  RowwiseWeight(const LinearProblem& p, const char* values_, std::vector<float> scales_)
      : values(values_), value_element(element(p.code)), scales(std::move(scales_)), K(p.K) {}

  class Panel {
   public:
    explicit Panel(const RowwiseWeight& w) : w_(w) {}
    void move(int64_t first, int64_t /*count*/, int64_t /*begin*/, int64_t /*end*/) { first_ = first; }

    const char* values(int64_t i) const { return w_.values + (first_ + i) * w_.K; }
    void pack(const Gemm8Bit& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      const BlockRows rows{block.count, w_.K, values(0) + next.begin, next.stride, next.n};
      gemm.pack_w(w_.value_element, values(block.i) + block.begin, rows, block.n, out);
    }
    const float* row_scales() const { return w_.scales.data() + first_; }

   private:
    const RowwiseWeight& w_;
    int64_t first_ = 0;
  };
};

}  // namespace aoext::cpu
