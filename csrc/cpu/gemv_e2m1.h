// Codes of e2m1, with a scale a block, by few rows of x as int8 limbs.
#pragma once

#include <algorithm>

#include "cpu/gemv_int4.h"

namespace aoext::cpu {

// A weight of e2m1 as the kernels of int4 take it: integers, twice the values, whose scales lie in columns; what halves them
// meets the sums with the scale of all of the weight.
struct DoubledWeight {
  const BlockwiseWeight& of;

  class Panel {
   public:
    explicit Panel(const DoubledWeight& w) : w_(w.of), scales_(w_.groups * kPanel), halves_(kPanel, 0.5f * w_.global_scale) {}

    void dot_staged(const GemvLimbsStaged& gemv, const int8_t* x, int64_t x_stride, const GroupsOfX& of_x, int64_t M,
                    int64_t first, int64_t count, float (*acc)[kPanel]) {
      staged_.resize((w_.groups + M) * kPanel);
      const StagedScales staged{staged_.data(), staged_.data() + w_.groups * kPanel};
      const Int4Panel panel = in_columns(first, count);
      gemv.stage(of_x, M, panel, count, w_.K, staged);
      gemv.dot(x, x_stride, of_x, M, panel, count, w_.K, staged, {panel, 0, staged}, acc);
    }
    const float* row_scales() const { return halves_.data(); }

    Int4Panel in_whole_vectors(int64_t first, int64_t count) { return in_columns(first, count); }

   private:
    // Blocks of zeros, which have the smallest scale that quantisers give, get one of 0: sums of codes with an offset, less what
    // the offset adds, would leave a little of it.
    void silence_zeros(int64_t first, int64_t count) {
      const float smallest = w_.scale_element == Element::e8m0 ? 0x1p-127f : w_.scale_element == Element::e4m3 ? 0x1p-6f : -1;
      bool any = false;
      for (const float scale : scales_) any |= scale <= smallest;
      if (!any) return;
      const int64_t bytes = w_.group_size / 2;
      for (int64_t g = 0; g < w_.groups; ++g)
        for (int64_t i = 0; i < count; ++i) {
          float& scale = scales_[g * kPanel + i];
          const char* const codes = w_.codes + (first + i) * w_.row_bytes + g * bytes;
          if (scale <= smallest && std::all_of(codes, codes + bytes, [](char two) { return (two & 0x77) == 0; })) scale = 0;
        }
    }

    Int4Panel in_columns(int64_t first, int64_t count) {
      const void* rows[kPanel];
      for (int64_t i = 0; i < kPanel; ++i)
        rows[i] = w_.scale + (first + std::min(i, count - 1)) / w_.block_n * w_.scale_row_bytes;
      kernels().rows_to_columns(w_.scale_element, rows, w_.groups, scales_.data());
      silence_zeros(first, count);
      return {reinterpret_cast<const uint8_t*>(w_.codes + first * w_.row_bytes),
              reinterpret_cast<const char*>(scales_.data()),
              nullptr,
              Element::fp32,
              sizeof(float),
              kPanel * sizeof(float),
              w_.group_size};
    }

    const BlockwiseWeight& w_;
    std::vector<float> scales_, halves_, staged_;
  };
};

template <class Gemv>
void multiply_e2m1_by_limbs(const Gemv& gemv, const Product& product, const BlockwiseWeight& weight) {
  const LinearProblem& p = product.p;
  const std::vector<float> rows = rows_of_floats(product.x);
  const LimbRows limbs(gemv, p, rows);
  if (limbs.count() > 0)
    each_panel(product_of_floats(product, rows, limbs.within()), DoubledWeight{weight},
               [&](DoubledWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
                 limbs.multiply(panel, first, count, sums);
               });
  if (limbs.beyond().empty()) return;
  const std::vector<float> others = chosen_rows(rows, p.K, limbs.beyond());
  multiply_by(*kernels().gemv_lut4_f32, product_of_floats(product, others, limbs.beyond()), weight);
}

inline void multiply_by(const GemvLimbs& gemv, const Product& product, const BlockwiseWeight& weight) {
  multiply_e2m1_by_limbs(gemv, product, weight);
}
inline void multiply_by(const GemvLimbsStaged& gemv, const Product& product, const BlockwiseWeight& weight) {
  multiply_e2m1_by_limbs(gemv, product, weight);
}

}  // namespace aoext::cpu
