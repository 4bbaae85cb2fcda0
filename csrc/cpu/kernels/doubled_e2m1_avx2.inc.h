// e2m1 for gemv_int8_limbs_staged.inc.h, with vectors of 32 bytes.
#pragma once

#include "common/e2m1.h"
#include "cpu/kernels/unsigned_nibbles.inc.h"
#include "cpu/kernels/vectors_avx2.inc.h"

namespace aoext::cpu {
namespace {

// A loader of e2m1, whose values are integers once they are doubled.
struct DoubledE2m1 {
  static constexpr int kOffset = 12;
  static constexpr bool kZeroPoints = false;
  static void load(U32 words, U32* even, U32* odd) {
    static constexpr OfE2m1<uint8_t> kValues = [] {
      OfE2m1<uint8_t> offset{};
      for (int code = 0; code < 2 * kE2m1Sign; ++code)  // of a code whose sign bit is flipped, as unpack leaves it
        offset.values[code] = static_cast<uint8_t>(kDoubledE2m1.values[code ^ kE2m1Sign] + kOffset);
      return offset;
    }();
    const __m256i values = _mm256_broadcastsi128_si256(aoext::cpu::load<__m128i>(kValues.values));
    U32 low, high;
    unpack(words, &low, &high);
    *even = (U32)_mm256_shuffle_epi8(values, (__m256i)low);
    *odd = (U32)_mm256_shuffle_epi8(values, (__m256i)high);
  }
};

}  // namespace
}  // namespace aoext::cpu
