// What AVX2 and AVX-512 share: vectors of 16 and 32 bytes, and the forms in which e4m3 becomes floats.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

inline float half_at(const void* p) { return _cvtsh_ss(load<uint16_t>(p)); }

// 16 halves as floats.
void widen(__m256i halves, F32* out);

// 16 values of e4m3 as halves times 2⁻⁸, by their bits: a second copy of the sign comes before the exponent and is cleared. NaN
// becomes ±kE4m3Nan.
constexpr int16_t kE4m3Nan = 0x3f80;

inline __m256i e4m3_halves(const void* p) {
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
}

// The same with NaN kept.
inline __m256i e4m3_halves_and_nan(const void* p) {
  const __m256i halves = e4m3_halves(p), magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7fff));
  return _mm256_or_si256(halves, _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(kE4m3Nan)));
}

constexpr int kExactE4m3 = 16 / kFloats;

inline void load_e4m3_and_nan(const void* p, F32* out) { widen(e4m3_halves_and_nan(p), out); }

inline void unpack_nibbles(const uint8_t* packed, int8_t (&q)[32]) {
  const __m128i bytes = load<__m128i>(packed), low = _mm_set1_epi8(15);
  const __m128i values = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const __m128i even = _mm_shuffle_epi8(values, _mm_and_si128(bytes, low));
  const __m128i odd = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
  store(q, _mm_unpacklo_epi8(even, odd));
  store(q + 16, _mm_unpackhi_epi8(even, odd));
}

inline Bytes32 look_up_bytes(const signed char (&table)[16], Bytes32 codes) {
  return (Bytes32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(table)), (__m256i)codes);
}

}  // namespace
}  // namespace aoext::cpu
