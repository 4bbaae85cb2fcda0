// Products of bytes by sdot, for gemv_int8_limbs_neon.inc.h.
#pragma once

#include "cpu/kernels/gemv_int8_limbs_neon.inc.h"

namespace aoext::cpu {
namespace {

// Lanes of each row of w's sums, of each limb.
template <class Loader, int kLimbs, int kRows, int kGroups>
struct DotLimbSums {
  static constexpr int kMost = kLimbs == 1 ? 4 : 2;
  int32x4_t sums[kRows][kFour][kLimbs] = {};

  static void order(int8_t*, int64_t) {}

  void add(const int8x16_t (&w)[kFour], const int8_t* x, int64_t x_stride) {
#pragma GCC unroll 4
    for (int i = 0; i < kFour; ++i) {
      const int8x16_t even = Loader::even(w[i]), odd = Loader::odd(w[i]);
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 3
        for (int limb = 0; limb < kLimbs; ++limb) {
          const int8_t* const of_limb = x + m * x_stride + limb * kLimbUnit;
          int32x4_t& to = sums[m][i][limb];
          to = vdotq_s32(to, even, load<int8x16_t>(of_limb));
          to = vdotq_s32(to, odd, load<int8x16_t>(of_limb + kLimbBytes));
        }
    }
  }

  F32 total(int m, int group) const {
    return join_limbs<Loader, kLimbs>([&](int limb) {
      const auto& s = sums[m];
      // Halves of each row's sum, which are groups where there are two.
      const int32x4_t a = vpaddq_s32(s[0][limb], s[1][limb]), b = vpaddq_s32(s[2][limb], s[3][limb]);
      if constexpr (kGroups == 1) return vpaddq_s32(a, b);
      return group == 0 ? vuzp1q_s32(a, b) : vuzp2q_s32(a, b);
    });
  }
};

}  // namespace
}  // namespace aoext::cpu
