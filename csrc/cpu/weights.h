// Weights as the linear drivers ask for them.
//
// A Tile is a thread's view of up to kTile consecutive rows. `operands` unpacks a piece of row i for tiles of products, whose
// sums row_scales()[i] multiplies; `bf16_row` writes all of it, scales applied. int4 applies its group scales on the way and has
// row scales of 1.
#pragma once

#include <algorithm>
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

inline void prefetch(const void* begin, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(static_cast<const char*>(begin) + i);
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

  // Scales lie [K/group_size, N]: a tile stages its columns, a cache line of them per group, as floats [K/group_size, kTile].
  class Tile {
   public:
    explicit Tile(const Int4Weight& w)
        : w_(w), groups_(w.K / w.group_size), scale_(groups_ * kTile), zero_point_(groups_ * kTile), ones_(kTile, 1.0f) {}

    void move(int64_t first, int64_t count) {
      first_ = first;
      stage(w_.scale, count, scale_.data());
      stage(w_.zero_point, count, zero_point_.data());
    }

    Int4Row int4(int64_t i) const { return {w_.packed + (first_ + i) * (w_.K / 2), &scale_[i], &zero_point_[i], w_.group_size}; }
    void operands(const Tiles& tiles, int64_t i, int64_t begin, int64_t n, void* out) const {
      tiles.weights_int4(int4(i), begin, n, out);
    }
    void ahead(int64_t i, int64_t begin, int64_t n) const { prefetch(int4(i).packed + begin / 2, n / 2); }
    void bf16_row(int64_t i, void* out) const { kernels().dequantize_int4(int4(i), 0, w_.K, Element::bf16, out); }
    const float* row_scales() const { return ones_.data(); }

   private:
    void stage(const char* data, int64_t count, float* out) const {
      const int64_t size = w_.scale_dtype == ScalarType::Float ? 4 : 2;
      const Element from = element(w_.scale_dtype);
      const char* const from_first = data + first_ * size;
      for (int64_t g = 0; g < groups_; ++g) {
        // Into the second cache: where N is a power of two, lines fall into one set of the first.
        constexpr int64_t kAhead = 32;
        __builtin_prefetch(from_first + std::min(g + kAhead, groups_ - 1) * w_.N * size, 0, 2);
        kernels().to_float(from, from_first + g * w_.N * size, out + g * kTile, count);
      }
    }

    const Int4Weight& w_;
    int64_t first_ = 0, groups_;
    std::vector<float> scale_, zero_point_, ones_;
  };
};

struct RowwiseWeight {
  const char* values;
  Element value_element;
  std::vector<float> scales;  // empty where nobody asks for them
  int64_t K;

  RowwiseWeight(const LinearProblem& p, const Tensor& weight, std::vector<float> scales_)
      : values(static_cast<const char*>(weight.const_data_ptr())),
        value_element(element(p.weight)),
        scales(std::move(scales_)),
        K(p.K) {}

  class Tile {
   public:
    explicit Tile(const RowwiseWeight& w) : w_(w) {}
    void move(int64_t first, int64_t /*count*/) { first_ = first; }

    const char* values(int64_t i) const { return w_.values + (first_ + i) * w_.K; }
    void operands(const Tiles& tiles, int64_t i, int64_t begin, int64_t n, void* out) const {
      tiles.weights(w_.value_element, values(i) + begin, n, out);
    }
    void ahead(int64_t i, int64_t begin, int64_t n) const { prefetch(values(i) + begin, n); }
    void bf16_row(int64_t i, void* out) {
      row_.resize(w_.K);
      kernels().to_float(w_.value_element, values(i), row_.data(), w_.K);
      kernels().scale_row(Element::bf16, row_.data(), row_scales()[i], nullptr, nullptr, out, w_.K);
    }
    const float* row_scales() const { return w_.scales.data() + first_; }

   private:
    const RowwiseWeight& w_;
    int64_t first_ = 0;
    std::vector<float> row_;
  };
};

}  // namespace aoext::cpu
