// Weights whose codes lie in planes (common/layout.h), as the linear drivers ask for them (weights.h): a panel makes codes of
// int8 and floats of what blocks hold, and is then a weight with a scale a block as any other. Zero points go beside the product,
// by sums of x (subtracted_zero_points.h). Few rows of x meet the blocks themselves (gemv_planes.h).
#pragma once

#include <memory>
#include <vector>

#include "cpu/plan.h"
#include "cpu/weights.h"

namespace aoext::cpu {

struct PlanesWeight {
  static constexpr bool kInt4 = false, kBlockwise = true;
  Code code;
  const uint8_t* blocks;
  const char *scale, *zero_point;  // beside the blocks; null where these hold them
  Element scale_element;
  int64_t scale_bytes, N, K, group_size, groups, row_bytes;
  int64_t segment, segments_of_x;  // of a product by x with scales along k; else 0
  float by;                        // what multiplies scales that blocks hold
  bool has_zero_points;

  PlanesWeight(const LinearProblem& p, const WeightData& w)
      : code(p.code),
        blocks(reinterpret_cast<const uint8_t*>(w.values)),
        scale(has_scales_inside(p.code) ? nullptr : w.scale),
        zero_point(w.zero_point),
        scale_element(element(p.scale)),
        scale_bytes(size_of(p.scale)),
        N(p.N),
        K(p.K),
        group_size(p.group_size),
        groups(p.K / p.group_size),
        row_bytes(aoext::row_bytes(p.code, p.K)),
        segment(p.input_group_size == 0 ? 0 : segment_of(p)),
        segments_of_x(segment == 0 ? 0 : ceil_div(p.input_group_size, segment)),
        by(has_scales_inside(p.code) ? *reinterpret_cast<const float*>(w.scale) : 1),
        has_zero_points(has_zero_points_beside(p)) {}

  const uint8_t* block(int64_t row, int64_t i) const { return blocks + row * row_bytes + i * layout(code).bytes; }

  class Panel {
   public:
    explicit Panel(const PlanesWeight& w)
        : w_(w), stride_((ceil_div(w.groups, kScalesBeyond) + 1) * kScalesBeyond), ones_(kPanel, 1.0f) {}

    void move(int64_t first, int64_t count, int64_t begin, int64_t end) {
      if (codes_ == nullptr) codes_.reset(new char[kPanel * w_.K]);
      const int64_t values = layout(w_.code).values, from = begin / values, to = ceil_div(end, values);
      stage(first, count, from * values / w_.group_size, ceil_div(to * values, w_.group_size));
      for (int64_t i = 0; i < count; ++i)
        kernels().unpack_planes(w_.code, w_.block(first + i, from), to - from, codes_.get() + i * w_.K + from * values);
      if (w_.segment > 0)
        kernels().rows_to_columns(Element::fp32, reinterpret_cast<const void* const*>(rows_), w_.groups, columns(w_.groups));
    }
    // The scales and zero points of these groups.
    void stage(int64_t first, int64_t count, int64_t begin, int64_t end) {
      first_ = first, count_ = count;
      scales_.resize(kPanel * stride_);
      zero_points_.resize(w_.has_zero_points ? kPanel * stride_ : kScalesBeyond);
      if (w_.scale == nullptr)
        read_blocks(count, begin, end);
      else
        read_columns(count, begin, end);
      for (int64_t i = 0; i < kPanel; ++i) rows_[i] = &scales_[std::min(i, count - 1) * stride_];
    }

    BlockwiseRows rows(int64_t i) const {
      const float* const zeros = zero_columns_.empty() ? nullptr : zero_columns_.data();
      const BlockwiseRows all{Element::int8, nullptr, codes_.get(), w_.K, w_.group_size, rows_, columns_.data(), zeros};
      return all.from(i);
    }
    void stage_columns(const GemmBlockwise& gemm, int64_t begin, int64_t end) {
      if (gemm.columns_of_scales == nullptr) return;
      const int64_t first = begin / w_.group_size, last = (end - 1) / w_.group_size + 1;
      gemm.columns_of_scales(rows_, first, last, columns(w_.groups));
      if (gemm.add_group_terms == nullptr || !w_.has_zero_points) return;
      const float* of_rows[kPanel];
      for (int64_t i = 0; i < kPanel; ++i) of_rows[i] = zero_points(std::min(i, count_ - 1));
      zero_columns_.resize(w_.groups * kPanel);
      code_offset_ = gemm.code_offset;
      gemm.columns_of_scales(of_rows, first, last, zero_columns_.data());
    }
    // Codes are unsigned where they have zero points.
    ZeroPointsBeside take_zero_points_out(int64_t begin, int64_t end) {
      if (zero_columns_.empty()) return {};
      const auto middle = static_cast<float>(1 << (layout(w_.code).code.bits() - 1));
      cpu::shift_zero_points(columns_, zero_columns_, -middle, w_.group_size, begin, end);
      const ZeroPointsBeside beside =
          cpu::take_zero_points_out(columns_, zero_columns_, beside_, middle, w_.group_size, begin, end);
      cpu::shift_zero_points(columns_, zero_columns_, middle + code_offset_, w_.group_size, begin, end);
      return beside;
    }
    SegmentScales scales(const float* of_x, int64_t of_row) const {
      return {w_.segment, of_x, of_row, w_.segments_of_x, columns_.data(), ceil_div(w_.group_size, w_.segment)};
    }
    void pack(const GemmBlockwise& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      gemm.pack_w(rows(block.i), rows_of(block, next), block.begin, block.n, out);
    }
    void pack(const GemmSegments& gemm, const BlockOfPanel& block, const Fetch& next, void* out) const {
      const BlockwiseRows from = rows(block.i);
      gemm.pack_w(from.type, from.codes + block.begin, rows_of(block, next), w_.segment, block.begin, block.n, out);
    }
    const float* row_scales() const { return ones_.data(); }
    const float* zero_points(int64_t i) const { return &zero_points_[i * stride_]; }

    // The rows from `first` on as they lie, with scales beside blocks for each segment.
    PlanesPanel as_it_lies(int64_t first, int64_t count, int64_t segment) {
      PlanesPanel panel{w_.code, w_.block(first, 0), w_.row_bytes, segment, w_.has_zero_points, w_.by, nullptr, nullptr, 0};
      if (w_.scale == nullptr) return panel;
      const int64_t of_group = w_.group_size / segment, segments = w_.groups * of_group;
      stage(first, count, 0, w_.groups);
      panel.scale_rows = scales_.data(), panel.zero_rows = zero_points_.data(), panel.scales_of_row = stride_;
      if (of_group == 1) return panel;
      panel.scales_of_row = segments;
      panel.scale_rows = spread(scales_, count, of_group, of_segments_[0]);
      panel.zero_rows = spread(zero_points_, count, of_group, of_segments_[1]);
      return panel;
    }

    // −z [groups, kPanel] of the panel.
    void zero_point_terms(int64_t first, int64_t count, float* out) {
      stage(first, count, 0, w_.groups);
      for (float& zero_point : zero_points_) zero_point = -zero_point;
      const void* rows[kPanel];
      for (int64_t i = 0; i < kPanel; ++i) rows[i] = zero_points(std::min(i, count - 1));
      kernels().rows_to_columns(Element::fp32, rows, w_.groups, out);
    }

   private:
    float* columns(int64_t count) {
      columns_.resize(count * kPanel);
      return columns_.data();
    }

    // What is next lies in blocks: as much of it, about.
    BlockRows rows_of(const BlockOfPanel& block, const Fetch& next) const {
      const Layout& of = layout(w_.code);
      const auto bytes = [&](int64_t elements) { return elements / of.values * of.bytes; };
      const char* const at = reinterpret_cast<const char*>(w_.block(first_, 0)) + bytes(next.begin);
      return {block.count, w_.K, at, bytes(next.stride), bytes(next.n)};
    }

    void read_blocks(int64_t count, int64_t begin, int64_t end) {
      const int64_t values = layout(w_.code).values, from = begin * w_.group_size / values;
      const int64_t blocks = ceil_div(end * w_.group_size, values) - from, at = from * values / w_.group_size;
      for (int64_t i = 0; i < count; ++i)
        kernels().numbers_of_planes(w_.code, w_.block(first_ + i, from), blocks, w_.by, &scales_[i * stride_ + at],
                                    w_.has_zero_points ? &zero_points_[i * stride_ + at] : nullptr);
    }
    void read_columns(int64_t count, int64_t begin, int64_t end) {
      const int64_t stride = w_.N * w_.scale_bytes, groups = end - begin;
      staged_.resize(groups * kPanel);
      const auto read = [&](const char* from, float* to) {
        kernels().columns_to_float(w_.scale_element, from + begin * stride + first_ * w_.scale_bytes, stride, groups, count,
                                   staged_.data());
        kernels().columns_to_rows(staged_.data(), groups, to + begin, stride_);
      };
      read(w_.scale, scales_.data());
      read(w_.zero_point, zero_points_.data());
    }
    const float* spread(const std::vector<float>& numbers, int64_t count, int64_t of_group, std::vector<float>& out) const {
      const int64_t segments = w_.groups * of_group;
      out.resize(count * segments);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t s = 0; s < segments; ++s) out[i * segments + s] = numbers[i * stride_ + s / of_group];
      return out.data();
    }

    const PlanesWeight& w_;
    const int64_t stride_;  // of a row's numbers
    int64_t first_ = 0, count_ = 0;
    float code_offset_ = 0;
    std::unique_ptr<char[]> codes_;
    std::vector<float> scales_, zero_points_, staged_, columns_, zero_columns_, beside_, ones_, of_segments_[2];
    const float* rows_[kPanel] = {};
  };
};

}  // namespace aoext::cpu
