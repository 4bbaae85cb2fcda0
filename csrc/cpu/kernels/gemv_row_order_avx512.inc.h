// The order in which products of one row of x by AVX-512 meet codes (gemv_row_avx512.inc.h): that which takes fewest instructions
// to unpack. Two vectors have 128 codes. Four blocks of 32 have 16 codes each in a vector; a block of 256 two runs of 32.
#pragma once

#include "cpu/kernels/gemv_row.inc.h"

namespace aoext::cpu {
namespace {

constexpr int kInUnit = 128, kRunOfX = 16;  // codes
constexpr int kRuns = 64 / kRunOfX;         // of a vector

// Whether a byte has the nibbles of codes 32 apart.
constexpr bool is_in_turns(const Layout& of) { return of.code.planes[0].run == 32 && of.code.planes[0].per == 2; }

// The first code of a run of a vector.
constexpr int code_at(const Layout& of, int vector, int run) {
  if (of.values == 32) return 32 * run + kRunOfX * vector;
  const int unit = kInUnit * (vector / 2), half = run / 2, rest = kRunOfX * (run % 2);
  return unit + rest + (is_in_turns(of) ? 32 * (vector % 2) + 64 * half : 64 * (vector % 2) + 32 * half);
}

// Fetches what is as many bytes ahead, into the second cache: where other programs read too, the hardware alone, which stays
// nearer, left these loops at half the pace of reading.
constexpr int64_t kAhead = 4096;

template <int kBytes>
inline void fetch_ahead(const uint8_t* block) {
  const auto at = reinterpret_cast<uintptr_t>(block) + kAhead;  // of no array, where it is behind the last
  for (uintptr_t i = 0; i < kBytes; i += kLine) fetch_weights(reinterpret_cast<const void*>(at + i));
}

template <int kLimbs>
void arrange_row(Code code, int8_t* x, int64_t K) {
  const Layout of = layout_of(code);
  int8_t in_order[kLimbs * kInUnit];
  for (int64_t k = 0; k < K; k += kInUnit, x += kLimbs * kInUnit) {
    memcpy(in_order, x, sizeof in_order);
    for (int vector = 0; vector < 2; ++vector)
      for (int run = 0; run < kRuns; ++run) {
        const int i = code_at(of, vector, run);
        for (int limb = 0; limb < kLimbs; ++limb)
          memcpy(x + (vector * kLimbs + limb) * kLimbBytes + kRunOfX * run,
                 in_order + (i / kLimbBytes * kLimbs + limb) * kLimbBytes + i % kLimbBytes, kRunOfX);
      }
  }
}

}  // namespace
}  // namespace aoext::cpu
