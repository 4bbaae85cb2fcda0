// Vectors of 64 bytes: AVX-512 F, BW, DQ, VL, VBMI, VNNI and BF16.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace aoext::cpu {
namespace {

constexpr int kFloats = 16, kRegisters = 32;
constexpr int64_t kKC = 512;  // floats of a packed block of w (gemm.inc.h)

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/avx.inc.h"
#include "cpu/kernels/scalars.inc.h"
#include "cpu/kernels/store_codes.inc.h"
#include "cpu/kernels/x86.inc.h"

namespace aoext::cpu {
namespace {

constexpr bool kFused = true;
constexpr __mmask64 kAllBytes = ~__mmask64{0};

inline F32 multiply_add(F32 a, F32 b, F32 c) { return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

// By one instruction. A compiler repeats a load in each instruction that can have one as its operand, and each of these is
// another stream to the hardware that fetches ahead: reads from memory then take up to twice as long.
template <class V>
inline V load_once(const void* p) {
  V v = load<V>(p);
  asm("" : "+v"(v));
  return v;
}

template <Element kType>
inline F32 floats_at(const void* p) {
  if constexpr (kType == Element::fp32) return load<F32>(p);
  if constexpr (kType == Element::bf16) return (F32)((U32)_mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>(p)) << 16);
  if constexpr (kType == Element::fp16) return (F32)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(p));
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  if constexpr (kType == Element::int8) return (F32)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  if constexpr (kType == Element::e5m2)
    return (F32)_mm512_maskz_cvtph_ps(0xffff, _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
  using Quad = typename Parts<T>::Quarter;
  Quad q[4];
  for (int i = 0; i < 4; ++i) {
    using Half = typename Parts<T>::Half;
    const Half half = (Half)_mm512_maskz_extracti64x4_epi64(0xf, (__m512i)v[i], 0) +
                      (Half)_mm512_maskz_extracti64x4_epi64(0xf, (__m512i)v[i], 1);
    q[i] = (Quad)_mm256_castsi256_si128((__m256i)half) + (Quad)_mm256_extracti128_si256((__m256i)half, 1);
  }
  add_quads(q, acc);
}

inline void widen(__m256i halves, F32* out) { out[0] = (F32)_mm512_maskz_cvtph_ps(0xffff, halves); }

// As e4m3_halves, 32 values.
inline void load_e4m3(const void* p, F32* out) {
  constexpr __mmask32 kAll = ~__mmask32{0};
  const __m512i wide = _mm512_maskz_slli_epi16(kAll, _mm512_maskz_cvtepi8_epi16(kAll, load<__m256i>(p)), 7);
  const __m512i halves = _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
  widen(_mm512_castsi512_si256(halves), out);
  widen(_mm512_maskz_extracti64x4_epi64(0xf, halves, 1), out + 1);
}

inline Bytes largest_bytes(Bytes a, Bytes b) { return (Bytes)_mm512_maskz_max_epu8(kAllBytes, (__m512i)a, (__m512i)b); }

inline bool any_byte_is(Bytes bytes, uint8_t byte) {
  return _mm512_cmpeq_epi8_mask((__m512i)bytes, _mm512_set1_epi8(static_cast<char>(byte))) != 0;
}

// What each nibble stands for.
inline F32 values_of_nibbles() { return F32{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}; }

// Only the low four bits of an index count. (GCC 12 warns of the intrinsic without a mask.)
inline F32 nibble(U32 words, int i) {
  return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(words >> (4 * i)), (__m512)values_of_nibbles());
}

struct Table {
  F32 values;
  explicit Table(const float* from) : values(load<F32>(from)) {}
};

inline F32 look_up(const Table& table, U32 words) {
  return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)words, (__m512)table.values);
}

template <int kGroups>
inline F32 spread(const float* from) {
  __m512 groups;
  if constexpr (kGroups == 2) groups = _mm512_castps128_ps512(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i*)from)));
  if constexpr (kGroups == 4) groups = _mm512_castps128_ps512(_mm_loadu_ps(from));
  if constexpr (kGroups == 8) groups = _mm512_castps256_ps512(_mm256_loadu_ps(from));
  return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)group_of_lane<kGroups>(), groups);
}

// The even and the odd nibbles of words as bytes 0..15, their sign bit flipped.
inline void unpack(U32 words, U32* even, U32* odd) {
  const auto nibbles = [](U32 w) {
    constexpr int kAndXor = 0x6a;  // (a & b) ^ c
    return (U32)_mm512_ternarylogic_epi32((__m512i)w, _mm512_set1_epi8(15), _mm512_set1_epi8(8), kAndXor);
  };
  *even = nibbles(words);
  *odd = nibbles(words >> 4);
}

// sums + the four products of unsigned by signed bytes of each lane.
inline I32 dot_bytes(I32 sums, U32 unsigned_bytes, U32 signed_bytes) {
  return (I32)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
}

// The words of 16 vectors, transposed: two steps within lanes of 128 bits, two of these lanes.
inline void transpose_words(U32 (&rows)[kFloats]) {
  __m512i fours[kFloats], eights[kFloats];
#pragma GCC unroll 4
  for (int i = 0; i < kFloats; i += 4) {
    const __m512i a = (__m512i)rows[i], b = (__m512i)rows[i + 1], c = (__m512i)rows[i + 2], d = (__m512i)rows[i + 3];
    const __m512i low[] = {_mm512_maskz_unpacklo_epi32(0xffff, a, b), _mm512_maskz_unpacklo_epi32(0xffff, c, d)};
    const __m512i high[] = {_mm512_maskz_unpackhi_epi32(0xffff, a, b), _mm512_maskz_unpackhi_epi32(0xffff, c, d)};
    fours[i] = _mm512_maskz_unpacklo_epi64(0xff, low[0], low[1]);
    fours[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, low[0], low[1]);
    fours[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, high[0], high[1]);
    fours[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, high[0], high[1]);
  }
  const auto even = [](__m512i a, __m512i b) { return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88); };
  const auto odd = [](__m512i a, __m512i b) { return _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd); };
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const int from = i / 4 * 8 + i % 4;
    eights[from] = even(fours[from], fours[from + 4]);
    eights[from + 4] = odd(fours[from], fours[from + 4]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i] = (U32)even(eights[i], eights[i + 8]);
    rows[i + 8] = (U32)odd(eights[i], eights[i + 8]);
  }
}

// Lane 4 i + n is the sum of the lanes 4 i … 4 i + 3 of rows[n].
template <class V>
inline V sums_of_fours(const V (&rows)[4]) {
  const auto pair = [](V a, V b) {
    return (V)_mm512_maskz_unpacklo_epi32(0xffff, (__m512i)a, (__m512i)b) +
           (V)_mm512_maskz_unpackhi_epi32(0xffff, (__m512i)a, (__m512i)b);
  };
  const __m512i ab = (__m512i)pair(rows[0], rows[1]), cd = (__m512i)pair(rows[2], rows[3]);
  return (V)_mm512_maskz_unpacklo_epi64(0xff, ab, cd) + (V)_mm512_maskz_unpackhi_epi64(0xff, ab, cd);
}

}  // namespace
}  // namespace aoext::cpu
