// Vectors of 32 bytes: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace aoext::cpu {
namespace {

constexpr int kFloats = 8, kRegisters = 16;
constexpr int64_t kKC = 384;  // floats of a packed block of w (gemm.inc.h)

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/avx.inc.h"
#include "cpu/kernels/scalars.inc.h"
#include "cpu/kernels/x86.inc.h"

namespace aoext::cpu {
namespace {

constexpr bool kFused = true;

inline F32 multiply_add(F32 a, F32 b, F32 c) { return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }

template <Element kType>
inline F32 floats_at(const void* p) {
  if constexpr (kType == Element::fp32) return load<F32>(p);
  if constexpr (kType == Element::bf16) return (F32)((U32)_mm256_cvtepu16_epi32(load<__m128i>(p)) << 16);
  if constexpr (kType == Element::fp16) return (F32)_mm256_cvtph_ps(load<__m128i>(p));
  const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  if constexpr (kType == Element::int8) return (F32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  if constexpr (kType == Element::e5m2) return (F32)_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
}

template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
  using Quad = typename Parts<T>::Quarter;
  Quad q[4];
  for (int i = 0; i < 4; ++i)
    q[i] = (Quad)_mm256_castsi256_si128((__m256i)v[i]) + (Quad)_mm256_extracti128_si256((__m256i)v[i], 1);
  add_quads(q, acc);
}

inline void widen(__m256i halves, F32* out) {
  out[0] = (F32)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  out[1] = (F32)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
}

inline void load_e4m3(const void* p, F32* out) { widen(e4m3_halves(p), out); }

inline Bytes largest_bytes(Bytes a, Bytes b) { return (Bytes)_mm256_max_epu8((__m256i)a, (__m256i)b); }

inline bool any_byte_is(Bytes bytes, uint8_t byte) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8((__m256i)bytes, _mm256_set1_epi8(static_cast<char>(byte)))) != 0;
}

template <bool kSigned>
inline void store_codes(const U32 (&codes)[4], const F32 (&x)[4], char* out) {
  constexpr uint32_t kCode = kSigned ? 0x7f : 0xff;
  const auto word = [&](int i) { return (__m256i)(codes[i] & kCode); };
  __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(word(0), word(1)), _mm256_packus_epi32(word(2), word(3)));
  if constexpr (kSigned) {
    const auto bits = [&](int i) { return (__m256i)x[i]; };  // saturated they keep their sign
    const __m256i signs = _mm256_packs_epi16(_mm256_packs_epi32(bits(0), bits(1)), _mm256_packs_epi32(bits(2), bits(3)));
    bytes = _mm256_or_si256(bytes, _mm256_and_si256(signs, _mm256_set1_epi8(-128)));
  }
  // Packing works on halves of vectors: these are the first halves of all four, then the second ones.
  store(out, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

struct Table {
  F32 low, high;
  explicit Table(const float* from) : low(load<F32>(from)), high(load<F32>(from + kFloats)) {}
};

// Three bits of an index count; the fourth chooses by the sign.
inline F32 look_up(const Table& table, U32 words) {
  const __m256 low = _mm256_permutevar8x32_ps((__m256)table.low, (__m256i)words);
  const __m256 high = _mm256_permutevar8x32_ps((__m256)table.high, (__m256i)words);
  return (F32)_mm256_blendv_ps(low, high, (__m256)(words << 28));
}

template <int kGroups>
inline F32 spread(const float* from) {
  static_assert(kGroups == 2 || kGroups == 4);
  const __m128 groups = kGroups == 2 ? _mm_castsi128_ps(_mm_loadl_epi64((const __m128i*)from)) : _mm_loadu_ps(from);
  return (F32)_mm256_permutevar8x32_ps(_mm256_castps128_ps256(groups), (__m256i)group_of_lane<kGroups>());
}

// The even and the odd nibbles of words as bytes 0..15, their sign bit flipped.
inline void unpack(U32 words, U32* even, U32* odd) {
  words ^= 0x88888888u;
  *even = words & 0x0f0f0f0fu;
  *odd = words >> 4 & 0x0f0f0f0fu;
}

// The words of eight vectors, transposed: within halves of vectors, then halves.
inline void transpose_words(U32 (&rows)[kFloats]) {
  __m256i fours[kFloats];
  for (int i = 0; i < kFloats; i += 4) {
    const auto row = [&](int r) { return (__m256i)rows[i + r]; };
    const __m256i low[] = {_mm256_unpacklo_epi32(row(0), row(1)), _mm256_unpacklo_epi32(row(2), row(3))};
    const __m256i high[] = {_mm256_unpackhi_epi32(row(0), row(1)), _mm256_unpackhi_epi32(row(2), row(3))};
    fours[i] = _mm256_unpacklo_epi64(low[0], low[1]);
    fours[i + 1] = _mm256_unpackhi_epi64(low[0], low[1]);
    fours[i + 2] = _mm256_unpacklo_epi64(high[0], high[1]);
    fours[i + 3] = _mm256_unpackhi_epi64(high[0], high[1]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = (U32)_mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = (U32)_mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31);
  }
}

}  // namespace
}  // namespace aoext::cpu
