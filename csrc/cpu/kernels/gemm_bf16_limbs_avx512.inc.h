// x of float32 and half as limbs of bfloat16, for gemm_avx512.inc.h.
//
// Such an x is the sum of two of bfloat16 and at most 2⁻¹⁸ of itself, which float32's bound has room for. A product takes both,
// so it costs twice what bfloat16's does, where float32's costs four times as much; the two parts of a sum are the limbs'.
#pragma once

#include "cpu/kernels/gemm_int4_avx512.inc.h"

namespace aoext::cpu {
namespace {

// kEights: in the order of int4's words.
template <bool kEights>
void pack_x_limbs(Element from, const void* source, int64_t, int64_t, int64_t n, void* out, uint32_t*) {
  constexpr int64_t kKC = kKCOf<DotBf16>;
  alignas(kLine) float row[kKC];
  to_float(from, source, row, n);
  pad_with_zeros(row, n);
  uint16_t* const high = static_cast<uint16_t*>(out);
  for (int64_t k = 0; k < n; k += 2 * kFloats) {
    const __m512 a = load<__m512>(row + k), b = load<__m512>(row + k + kFloats);
    const __m512i nearest = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    const auto left = [](__m512 x, __m256i half) {
      const __m512i words = _mm512_maskz_cvtepu16_epi32(0xffff, half);
      return (__m512)((F32)x - (F32)((U32)words << 16));
    };
    // The halves of an index are constants of the instruction.
    const __m512i rest = (__m512i)_mm512_cvtne2ps_pbh(left(b, _mm512_maskz_extracti64x4_epi64(0xf, nearest, 1)),
                                                      left(a, _mm512_maskz_extracti64x4_epi64(0xf, nearest, 0)));
    store(high + k, kEights ? in_eights(nearest) : nearest);
    store(high + kKC + k, kEights ? in_eights(rest) : rest);
  }
  const int64_t known = (n + 2 * kFloats - 1) / (2 * kFloats) * (2 * kFloats);
  pad_with_zeros(high, known);
  pad_with_zeros(high + kKC, known);
}

// What nibbles stand for in a table of numbers that are bfloat16: as many instructions as OffsetCodes where a shuffle takes no
// longer than a bit operation.
struct LookedUpNibbles : WordsOfInt4 {
  __m512i table;

  explicit LookedUpNibbles(const float* from) {
    uint16_t values[2 * kFloats];  // an index has five bits, the fifth another nibble's
    for (int i = 0; i < 2 * kFloats; ++i) values[i] = static_cast<uint16_t>(bits(from[i & 15]) >> 16);
    table = load<__m512i>(values);
  }

  void operator()(U32 words, int64_t, int, char* to) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      store(to + i * kStepBytes, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, (__m512i)(words >> (4 * i)), table));
  }
};

// q itself, as its products by limbs leave no room for what an offset loses.
void pack_int4_exact(const Int4Row& first, const BlockRows& rows, int64_t begin, int64_t n, void* out) {
  const F32 values = values_of_nibbles();
  pack_words(first.packed + begin / 2, rows, n / 2, out, LookedUpNibbles(reinterpret_cast<const float*>(&values)));
}

template <bool kInt4>
constexpr GemmShape kShapeBf16Limbs{.operand_bytes = sizeof(uint16_t),
                                    .NC = kPanel,
                                    .KC = kKCOf<DotBf16>,
                                    .limbs = kTwoLimbs,
                                    .fetch_next_panel = true,
                                    .pack_x = pack_x_limbs<kInt4>,
                                    .accepts = accepts_limbs<kInt4>};

constexpr Gemm8Bit kGemmBf16Limbs{
    .shape = kShapeBf16Limbs<kBy8Bit>, .pack_w = pack_8bit, .macro_kernel = macro_kernel_channels<DotBf16, kTwoLimbs>};

constexpr GemmInt4Codes kGemmInt4CodesLimbs{
    .shape = kShapeBf16Limbs<kByInt4>, .pack_w = pack_int4_exact, .macro_kernel = macro_kernel_int4_codes<kTwoLimbs>};

}  // namespace
}  // namespace aoext::cpu
