// Weights as rows of float32 and a scale a row: what the linear drivers ask of a weight format.
//
// A Tile covers some consecutive rows; row(i, out) writes row i's K values, row_scales()[i] multiplies its
// sums. int4 applies its group scales in row() and has row scales of 1.
#pragma once

#include <vector>

#include "common/checks.h"
#include "cpu/element.h"
#include "cpu/isa.h"

namespace aoext::cpu {

// A contiguous tensor's elements as float32.
inline std::vector<float> floats(const Tensor& t) {
  std::vector<float> out(t.numel());
  kernels().to_float(element(t.scalar_type()), t.const_data_ptr(), out.data(), t.numel());
  return out;
}

struct Int4Weight {
  const uint8_t* packed;
  const char *scale, *zero_point;
  ScalarType scale_dtype;
  int64_t N, K, group_size;

  Int4Weight(const LinearProblem& p, const Tensor& weight, const Tensor& scale_, const Tensor& zero_point_)
      : packed(static_cast<const uint8_t*>(weight.const_data_ptr())),
        scale(static_cast<const char*>(scale_.const_data_ptr())),
        zero_point(static_cast<const char*>(zero_point_.const_data_ptr())),
        scale_dtype(p.scale),
        N(p.N),
        K(p.K),
        group_size(p.group_size) {}

  // Scales lie [K/group_size, N]: a tile reads a cache line of them per group and turns them to rows.
  class Tile {
   public:
    Tile(const Int4Weight& w, int64_t first, int64_t count)
        : w_(w),
          first_(first),
          groups_(w.K / w.group_size),
          scale_(transposed(w.scale, count)),
          zero_point_(transposed(w.zero_point, count)),
          ones_(count, 1.0f) {}

    void row(int64_t i, float* out) const {
      kernels().dequantize_int4(w_.packed + (first_ + i) * (w_.K / 2), &scale_[i * groups_], &zero_point_[i * groups_],
                                w_.group_size, w_.K, out);
    }
    const float* row_scales() const { return ones_.data(); }

    // Rows from i on, as kernels().dot_int4 takes them.
    Int4Rows rows(int64_t i) const {
      return {w_.packed + (first_ + i) * (w_.K / 2), &scale_[i * groups_], &zero_point_[i * groups_], w_.K, w_.group_size};
    }

   private:
    std::vector<float> transposed(const char* data, int64_t count) const {
      const int64_t size = w_.scale_dtype == ScalarType::Float ? 4 : 2;
      std::vector<float> line(count), out(count * groups_);
      for (int64_t g = 0; g < groups_; ++g) {
        kernels().to_float(element(w_.scale_dtype), data + (g * w_.N + first_) * size, line.data(), count);
        for (int64_t i = 0; i < count; ++i) out[i * groups_ + g] = line[i];
      }
      return out;
    }

    const Int4Weight& w_;
    int64_t first_, groups_;
    std::vector<float> scale_, zero_point_, ones_;
  };
};

struct RowwiseWeight {
  const char* values;
  Element value_element;
  std::vector<float> scales;
  int64_t K;

  RowwiseWeight(const LinearProblem& p, const Tensor& weight, const Tensor& scale)
      : values(static_cast<const char*>(weight.const_data_ptr())),
        value_element(element(p.weight)),
        scales(floats(scale)),
        K(p.K) {}

  class Tile {
   public:
    Tile(const RowwiseWeight& w, int64_t first, int64_t /*count*/) : w_(w), first_(first) {}
    void row(int64_t i, float* out) const { kernels().to_float(w_.value_element, values(i), out, w_.K); }
    const float* row_scales() const { return w_.scales.data() + first_; }
    const char* values(int64_t i) const { return w_.values + (first_ + i) * w_.K; }

   private:
    const RowwiseWeight& w_;
    int64_t first_;
  };
};

}  // namespace aoext::cpu
