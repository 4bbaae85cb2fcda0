// Products of bytes by smmla, for gemv_int8_limbs_neon.inc.h: two rows of w by two limbs of a row of x. A third limb stands in
// both columns, and one alone is sdot's.
#pragma once

#include "cpu/kernels/limb_sums_dotprod.inc.h"

namespace aoext::cpu {
namespace {

template <class Loader, int kLimbs, int kRows, int kGroups>
struct MatrixLimbSums {
  static_assert(kLimbs == 2 || kLimbs == 3);
  static constexpr int kMost = kGroups == 1 ? 4 : 2;
  static constexpr int kPairsOfRows = kFour / 2, kChunks = 4, kOperands = kLimbs - 1;
  static constexpr int64_t kChunk = kLimbUnit / kChunks;  // 8 bytes of a limb
  int32x4_t sums[kGroups][kRows][kPairsOfRows][kOperands] = {};

  // A unit's chunks, each with those of all limbs.
  static void order(int8_t* x, int64_t K) {
    for (int64_t k = 0; k < K; k += kLimbUnit) {
      uint64_t from[kLimbs][kChunks], to[kChunks][kLimbs];
      memcpy(from, x + kLimbs * k, sizeof from);
      for (int c = 0; c < kChunks; ++c)
        for (int limb = 0; limb < kLimbs; ++limb) to[c][limb] = from[limb][c];
      memcpy(x + kLimbs * k, to, sizeof to);
    }
  }

  void add(const int8x16_t (&w)[kFour], const int8_t* x, int64_t x_stride) {
    int8x16_t wk[kPairsOfRows][kChunks];
    for (int pair = 0; pair < kPairsOfRows; ++pair) {
      const int64x2_t a = vreinterpretq_s64_s8(w[2 * pair]), b = vreinterpretq_s64_s8(w[2 * pair + 1]);
      const int8x16_t halves[] = {vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))};
      for (int half = 0; half < 2; ++half) {
        wk[pair][half] = Loader::even(halves[half]);
        wk[pair][2 + half] = Loader::odd(halves[half]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        auto& to = sums[c % kGroups][m];  // chunks are halves of the unit in turn
        const int8_t* const chunk = x + m * x_stride + c * kLimbs * kChunk;
        int8x16_t xk[kOperands] = {load<int8x16_t>(chunk)};
        if constexpr (kLimbs == 3) xk[1] = vreinterpretq_s8_s64(vdupq_n_s64(load<int64_t>(chunk + 2 * kChunk)));
        for (int pair = 0; pair < kPairsOfRows; ++pair)
          for (int i = 0; i < kOperands; ++i) to[pair][i] = vmmlaq_s32(to[pair][i], wk[pair][c], xk[i]);
      }
  }

  F32 total(int m, int group) const {
    return join_limbs<Loader, kLimbs>([&](int limb) {
      const int32x4_t a = sums[group][m][0][limb / 2], b = sums[group][m][1][limb / 2];
      return limb == 1 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
    });
  }
};

template <class Loader, int kLimbs, int kRows, int kGroups>
struct LimbSums : MatrixLimbSums<Loader, kLimbs, kRows, kGroups> {};
template <class Loader, int kRows, int kGroups>
struct LimbSums<Loader, kOneInt8Limb, kRows, kGroups> : DotLimbSums<Loader, kOneInt8Limb, kRows, kGroups> {};

}  // namespace
}  // namespace aoext::cpu
