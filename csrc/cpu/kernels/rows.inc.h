// The row kernels in vector-width-agnostic C++: the vector extensions of GCC and Clang where a loop needs
// a shape, plain loops where the compiler finds it. Included once per instruction set by a translation
// unit that defines AOEXT_KERNELS, AOEXT_NAME and AOEXT_FLOATS (floats in a vector) and sets the flags.
//
// dot_f32 keeps kTileRows × tokens sums in registers: per vector of k it loads tokens + kTileRows vectors
// for tokens · kTileRows multiply-adds, so with 4 tokens the two load ports do not bind.
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "cpu/kernels/kernels.h"

namespace aoext::cpu {
namespace {

constexpr int kFloats = AOEXT_FLOATS;
using F32 = float __attribute__((vector_size(4 * kFloats)));

// 16 sums fit the 32 registers of AVX-512; with 16 registers 8 do.
constexpr int kTokens = kFloats >= 16 ? 4 : 2;

template <class V>
inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

inline float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

constexpr uint32_t kSign = 0x80000000u, kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

// The sum of a vector's lanes, pairwise.
template <class T, class V>
inline T sum(V v) {
  T lanes[sizeof(V) / sizeof(T)];
  memcpy(lanes, &v, sizeof v);
  for (int n = sizeof(V) / sizeof(T) / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  return lanes[0];
}

// ---- high precision formats ----------------------------------------------------------------------------

inline float bf16_to_float(uint16_t h) { return from_bits(static_cast<uint32_t>(h) << 16); }

inline uint16_t float_to_bf16(float f) {
  const uint32_t u = bits(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((u & kMagnitude) > kInfinity ? (u >> 16) | 0x40u : rounded);
}

// Subnormal halves by an exact float subtraction (0.5 + m·2⁻²⁴ − 0.5), which no flush-to-zero mode can touch.
inline float f16_to_float(uint16_t h) {
  const uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t infinite = normal + (112u << 23);
  const uint32_t subnormal = bits(from_bits(magnitude + (126u << 23)) - 0.5f);
  return from_bits(sign | (magnitude >= 0x7c00u ? infinite : magnitude >= 0x0400u ? normal : subnormal));
}

inline uint16_t float_to_f16(float f) {
  const uint32_t u = bits(f), magnitude = u & kMagnitude;
  const uint32_t subnormal = bits(from_bits(magnitude) + 0.5f) - (126u << 23);  // ulp of 0.5 is 2⁻²⁴
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal > 0x7c00u ? 0x7c00u : normal;
  const uint32_t h = magnitude > kInfinity ? 0x7e00u : magnitude >= (143u << 23) ? 0x7c00u : finite;
  return static_cast<uint16_t>(h | ((u & kSign) >> 16));
}

// ---- float8 --------------------------------------------------------------------------------------------

// An 8-bit float is a half (e5m2) or a half shifted by one exponent bit (e4m3: times 2⁻⁸), NaN apart.
inline float e5m2_to_float(uint8_t b) { return f16_to_float(static_cast<uint16_t>(b << 8)); }

inline float e4m3_to_float(uint8_t b) {
  const float value = f16_to_float(static_cast<uint16_t>(((b & 0x80) << 8) | ((b & 0x7f) << 7))) * 256.0f;
  return (b & 0x7f) == 0x7f ? from_bits(0x7fc00000u) : value;
}

// Finite |f| at most the format's largest value: what quantisation hands over. kMantissa bits are kept,
// ties to even; below 2^kMinExponent the step is constant, which adding a float with that ulp rounds to.
template <int kMantissa, int kMinExponent>
inline uint8_t float_to_float8(float f) {
  constexpr int kDrop = 23 - kMantissa;
  const uint32_t u = bits(f), magnitude = u & kMagnitude;
  const uint32_t anchor = static_cast<uint32_t>(127 + kMinExponent - kMantissa + 23) << 23;
  const uint32_t subnormal = bits(from_bits(magnitude) + from_bits(anchor)) - anchor;
  const uint32_t rounded = magnitude + ((1u << (kDrop - 1)) - 1) + ((magnitude >> kDrop) & 1u);
  const uint32_t normal = (rounded >> kDrop) - (static_cast<uint32_t>(126 + kMinExponent) << kMantissa);
  const uint32_t small = static_cast<uint32_t>(127 + kMinExponent) << 23;
  return static_cast<uint8_t>((magnitude < small ? subnormal : normal) | ((u & kSign) >> 24));
}

// ---- conversions of rows -------------------------------------------------------------------------------

template <class T, float (*convert)(T)>
inline void row_to_float(const void* source, float* out, int64_t n) {
  const T* s = static_cast<const T*>(source);
  for (int64_t i = 0; i < n; ++i) out[i] = convert(s[i]);
}

template <class T, T (*convert)(float)>
inline void row_from_float(const float* source, void* out, int64_t n) {
  T* o = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = convert(source[i]);
}

inline float identity(float f) { return f; }
inline float i8_to_float(int8_t i) { return static_cast<float>(i); }
inline float i32_to_float(int32_t i) { return static_cast<float>(i); }

void to_float(Element from, const void* source, float* out, int64_t n) {
  switch (from) {
    case Element::bf16: return row_to_float<uint16_t, bf16_to_float>(source, out, n);
    case Element::f16: return row_to_float<uint16_t, f16_to_float>(source, out, n);
    case Element::f32: return row_to_float<float, identity>(source, out, n);
    case Element::i8: return row_to_float<int8_t, i8_to_float>(source, out, n);
    case Element::e4m3: return row_to_float<uint8_t, e4m3_to_float>(source, out, n);
    case Element::e5m2: return row_to_float<uint8_t, e5m2_to_float>(source, out, n);
    case Element::i32: return row_to_float<int32_t, i32_to_float>(source, out, n);
  }
}

void from_float(Element to, const float* source, void* out, int64_t n) {
  if (to == Element::bf16) return row_from_float<uint16_t, float_to_bf16>(source, out, n);
  if (to == Element::f16) return row_from_float<uint16_t, float_to_f16>(source, out, n);
  row_from_float<float, identity>(source, out, n);
}

// ---- int4 ----------------------------------------------------------------------------------------------

// A nibble's two's complement value: the XOR moves −8..7 to 0..15 in order, the subtraction moves it back.
inline int8_t sign_extend(int nibble) { return static_cast<int8_t>((nibble ^ 8) - 8); }

void dequantize_int4(const uint8_t* packed, const float* scale, const float* zero_point, int64_t group_size, int64_t K,
                     float* out) {
  constexpr int64_t kChunk = 512;
  int8_t q[kChunk];
  for (int64_t begin = 0; begin < K; begin += kChunk) {
    const int64_t count = K - begin < kChunk ? K - begin : kChunk;
    for (int64_t i = 0; i < count / 2; ++i) {
      const uint8_t byte = packed[begin / 2 + i];
      q[2 * i] = sign_extend(byte & 15);
      q[2 * i + 1] = sign_extend(byte >> 4);
    }
    for (int64_t i = 0, g = begin / group_size; i < count; ++g) {
      const int64_t group_end = (g + 1) * group_size - begin;
      const int64_t end = group_end < count ? group_end : count;
      const float s = scale[g], z = zero_point[g];
      for (; i < end; ++i) out[begin + i] = static_cast<float>(q[i]) * s + z;
    }
  }
}

// ---- dot products --------------------------------------------------------------------------------------

template <int M>
inline void dot_tile_f32(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t K, float (*acc)[kTileRows]) {
  F32 sums[M][kTileRows] = {};
  for (int64_t k = 0; k < K; k += kFloats) {
    F32 wk[kTileRows];
    for (int n = 0; n < kTileRows; ++n) wk[n] = load<F32>(w + n * w_stride + k);
    for (int m = 0; m < M; ++m) {
      const F32 xk = load<F32>(x + m * x_stride + k);
      for (int n = 0; n < kTileRows; ++n) sums[m][n] += xk * wk[n];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < kTileRows; ++n) acc[m][n] += sum<float>(sums[m][n]);
}

// M rows of x, as many at once as kernels take: body(Rows<count>, first).
template <int kCount>
struct Rows {
  static constexpr int count = kCount;
};

template <class Body>
inline void each_rows(int M, Body&& body) {
  int m = 0;
  if (kTokens == 4)
    for (; M - m >= 4; m += 4) body(Rows<4>(), m);
  for (; M - m >= 2; m += 2) body(Rows<2>(), m);
  if (m < M) body(Rows<1>(), m);
}

void dot_f32(const float* x, int64_t x_stride, int M, const float* w, int64_t w_stride, int64_t K, float (*acc)[kTileRows]) {
  each_rows(M,
            [&](auto rows, int m) { dot_tile_f32<decltype(rows)::count>(x + m * x_stride, x_stride, w, w_stride, K, acc + m); });
}

// ---- int4 by nibbles -----------------------------------------------------------------------------------
//
// A vector of words is 8 · kFloats weights: nibble i of all words at a time becomes floats and meets x, which lies in that
// order. Sums of a group are scaled once: w·x = Σ scale · (Σ q x) + zero_point · Σ x. For one row of x a vector of words costs
// 8 shifts, 8 conversions and 8 multiply-adds, so AVX-512 reads some 5 bytes a clock and core.

using U32 = uint32_t __attribute__((vector_size(4 * kFloats)));
using I32 = int32_t __attribute__((vector_size(4 * kFloats)));
constexpr int64_t kUnit = 8 * kFloats;
static_assert(kInt4Pad % kUnit == 0, "arranged rows are whole vectors");

#ifdef __AVX512F__
// Lane i of `table` where the low four bits of an index are i. (GCC 12 warns of the intrinsic without a mask.)
inline F32 look_up(F32 table, U32 indices) { return (F32)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)indices, (__m512)table); }
inline F32 nibble(U32 words, int i) {
  return look_up(F32{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}, words >> (4 * i));
}
#else
inline F32 nibble(U32 words, int i) { return __builtin_convertvector((I32)(words << (28 - 4 * i)) >> 28, F32); }
#endif

inline F32 broadcast(float f) { return f - F32{}; }

// Lane i has p[i >> shift], or 0 where that is not among the first `count`.
inline F32 spread(const float* p, int shift, int64_t count) {
#ifdef __AVX512F__
  const __mmask16 inside = count >= kFloats ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
  return look_up((F32)_mm512_maskz_loadu_ps(inside, p), U32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} >> shift);
#else
  F32 v = {};
  for (int i = 0; i < kFloats; ++i) v[i] = (i >> shift) < count ? p[i >> shift] : 0;
  return v;
#endif
}

void arrange_int4(const float* x, int64_t K, int64_t group_size, float* out, float* group_sums) {
  for (int64_t begin = 0; begin < K; begin += kUnit)
    for (int i = 0; i < 8; ++i)
      for (int lane = 0; lane < kFloats; ++lane) {
        const int64_t k = begin + 8 * lane + i;
        out[begin + i * kFloats + lane] = k < K ? x[k] : 0;
      }
  for (int64_t g = 0; g < K / group_size; ++g) {
    float s = 0;
    for (int64_t k = g * group_size; k < (g + 1) * group_size; ++k) s += x[k];
    group_sums[g] = s;
  }
}

template <int M, int N>
inline void dot_tile_int4(const float* x, int64_t x_stride, const float* group_sums, const Int4Rows& w, int row,
                          float (*acc)[kTileRows]) {
  const int64_t K = w.K, bytes = K / 2, groups = K / w.group_size;
  const int64_t step = w.group_size < kUnit ? kUnit : w.group_size;  // of k, between scalings
  const int64_t step_groups = step / w.group_size;
  int shift = 0;  // lanes of a group, where a vector has several
  while (step_groups > 1 && (8 << shift) < w.group_size) ++shift;
  const uint8_t* const packed = w.packed + row * bytes;
  const float* const scale = w.scale + row * groups;
  F32 sums[M][N] = {};
  for (int64_t begin = 0, g = 0; begin < K; begin += step, g += step_groups) {
    F32 part[M][N] = {};
    const auto add = [&](int64_t k, const U32(&words)[N]) {
      for (int i = 0; i < 8; ++i) {
        F32 q[N];
        for (int n = 0; n < N; ++n) q[n] = nibble(words[n], i);
        for (int m = 0; m < M; ++m) {
          const F32 xk = load<F32>(x + m * x_stride + k + i * kFloats);
          for (int n = 0; n < N; ++n) part[m][n] += xk * q[n];
        }
      }
    };
    const int64_t end = begin + step < K ? begin + step : K;
    int64_t k = begin;
    for (; k + kUnit <= end; k += kUnit) {
      U32 words[N];
      for (int n = 0; n < N; ++n) {
        const uint8_t* const from = packed + n * bytes + k / 2;
        words[n] = load<U32>(from);
        __builtin_prefetch(from + N * bytes);  // the next rows: each is too short for the hardware to run ahead
      }
      add(k, words);
    }
    if (k < end) {
      U32 words[N] = {};
      for (int n = 0; n < N; ++n) memcpy(&words[n], packed + n * bytes + k / 2, static_cast<size_t>(end - k) / 2);
      add(k, words);
    }
    for (int n = 0; n < N; ++n) {
      const float* const from = scale + n * groups + g;
      const F32 s = step_groups > 1 ? spread(from, shift, groups - g) : broadcast(*from);
      for (int m = 0; m < M; ++m) sums[m][n] += s * part[m][n];
    }
  }
  for (int n = 0; n < N; ++n) {
    const float* const zero_point = w.zero_point + (row + n) * groups;
    for (int m = 0; m < M; ++m) {
      const float* const of_groups = group_sums + m * groups;
      int64_t g = 0;
      for (; g + kFloats <= groups; g += kFloats) sums[m][n] += load<F32>(zero_point + g) * load<F32>(of_groups + g);
      float rest = 0;
      for (; g < groups; ++g) rest += zero_point[g] * of_groups[g];
      acc[m][row + n] = sum<float>(sums[m][n]) + rest;
    }
  }
}

template <int M>
inline void dot_rows_int4(const float* x, int64_t x_stride, const float* group_sums, const Int4Rows& w, int N,
                          float (*acc)[kTileRows]) {
  constexpr int kRows = M <= 2 && kFloats >= 16 ? 4 : 2;  // as many sums as registers hold twice
  int n = 0;
  for (; n + kRows <= N; n += kRows) dot_tile_int4<M, kRows>(x, x_stride, group_sums, w, n, acc);
  for (; n < N; ++n) dot_tile_int4<M, 1>(x, x_stride, group_sums, w, n, acc);
}

void dot_int4(const float* x, int64_t x_stride, const float* group_sums, int M, const Int4Rows& w, int N,
              float (*acc)[kTileRows]) {
  const int64_t groups = w.K / w.group_size;
  each_rows(M, [&](auto rows, int m) {
    dot_rows_int4<decltype(rows)::count>(x + m * x_stride, x_stride, group_sums + m * groups, w, N, acc + m);
  });
}

// ---- 8-bit values --------------------------------------------------------------------------------------
//
// Values become floats in registers and meet x, which lies as it is.

// kFloats values.
template <Element kType>
inline F32 values_at(const void* p) {
#ifdef __AVX512F__
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  if constexpr (kType == Element::i8) return (F32)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  if constexpr (kType == Element::e5m2) return (F32)_mm512_maskz_cvtph_ps(0xffff, high);
  const __m256i all_ones = _mm256_set1_epi16(0x7f00);
  const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(high, all_ones), all_ones);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return (F32)_mm512_mask_mov_ps(_mm512_maskz_cvtph_ps(0xffff, half), nan, _mm512_set1_ps(from_bits(0x7fc00000u))) * 256.0f;
#else
#ifdef __AVX2__
  const U32 byte = (U32)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
#else
  U32 byte;
  for (int i = 0; i < kFloats; ++i) byte[i] = static_cast<const uint8_t*>(p)[i];
#endif
  if constexpr (kType == Element::i8) return __builtin_convertvector((I32)(byte << 24) >> 24, F32);
  // As f16_to_float.
  const U32 sign = (byte & 0x80) << 24, magnitude = (byte & 0x7f) << (kType == Element::e5m2 ? 21 : 20);
  const U32 normal = magnitude + (112u << 23), subnormal = (U32)((F32)((magnitude >> 13) + (126u << 23)) - 0.5f);
  const U32 finite = magnitude >= (1u << 23) ? normal : subnormal;
  if constexpr (kType == Element::e5m2) return (F32)((magnitude >= (0x7c00u << 13) ? normal + (112u << 23) : finite) | sign);
  return (F32)(((byte & 0x7f) == 0x7f ? finite | 0x7fc00000u : finite) | sign) * 256.0f;
#endif
}

template <Element kType, int M, int N>
inline void dot_tile_values(const float* x, int64_t x_stride, const char* w, int64_t K, float (*acc)[kTileRows]) {
  F32 sums[M][N] = {};
  const auto add = [&](int64_t k, const char* from, int64_t stride) {
    F32 wk[N];
    for (int n = 0; n < N; ++n) wk[n] = values_at<kType>(from + n * stride);
    for (int m = 0; m < M; ++m) {
      const F32 xk = load<F32>(x + m * x_stride + k);
      for (int n = 0; n < N; ++n) sums[m][n] += xk * wk[n];
    }
  };
  constexpr int64_t kLine = 64;
  int64_t k = 0;
  for (; k + kLine <= K; k += kLine) {
    for (int n = 0; n < N; ++n) __builtin_prefetch(w + (N + n) * K + k);  // the next rows, as dot_tile_int4 does
    for (int64_t i = 0; i < kLine; i += kFloats) add(k + i, w + k + i, K);
  }
  for (; k < K; k += kFloats) {
    char rest[N][kFloats] = {};
    const int64_t count = K - k < kFloats ? K - k : kFloats;
    for (int n = 0; n < N; ++n) memcpy(rest[n], w + n * K + k, static_cast<size_t>(count));
    add(k, rest[0], kFloats);
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] += sum<float>(sums[m][n]);
}

template <Element kType>
void dot_rows_values(const float* x, int64_t x_stride, int M, const char* w, int N, int64_t K, float (*acc)[kTileRows]) {
  each_rows(M, [&](auto rows, int m) {
    constexpr int kCount = decltype(rows)::count;
    const float* const xm = x + m * x_stride;
    if (N == kTileRows) return dot_tile_values<kType, kCount, kTileRows>(xm, x_stride, w, K, acc + m);
    for (int n = 0; n < N; ++n) {
      float one[kCount][kTileRows] = {};
      dot_tile_values<kType, kCount, 1>(xm, x_stride, w + n * K, K, one);
      for (int i = 0; i < kCount; ++i) acc[m + i][n] += one[i][0];
    }
  });
}

void dot_values(const float* x, int64_t x_stride, int M, Element type, const void* w, int N, int64_t K, float (*acc)[kTileRows]) {
  const char* const rows = static_cast<const char*>(w);
  if (type == Element::i8) return dot_rows_values<Element::i8>(x, x_stride, M, rows, N, K, acc);
  if (type == Element::e4m3) return dot_rows_values<Element::e4m3>(x, x_stride, M, rows, N, K, acc);
  dot_rows_values<Element::e5m2>(x, x_stride, M, rows, N, K, acc);
}

#ifdef __AVX512VNNI__

// vpdpbusd multiplies unsigned by signed: it takes w + 128, and 128 · Σx comes off at the end. Sums wrap
// modulo 2³² on the way and are right at the end, as the result fits.
template <int M>
inline int64_t dot_tile_i8(const int8_t* x, int64_t x_stride, const int8_t* w, int64_t w_stride, int N, int64_t K,
                           int32_t (*acc)[kTileRows]) {
  const __m512i flip = _mm512_set1_epi8(-128);
  __m512i sums[M][kTileRows], x_sums[M];
  for (int m = 0; m < M; ++m) {
    x_sums[m] = _mm512_setzero_si512();
    for (int n = 0; n < kTileRows; ++n) sums[m][n] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < K; k += 64) {
    const __mmask64 mask = K - k >= 64 ? ~__mmask64{0} : (__mmask64{1} << (K - k)) - 1;
    __m512i wk[kTileRows];
    for (int n = 0; n < kTileRows; ++n)
      wk[n] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, w + (n < N ? n : 0) * w_stride + k), flip);
    for (int m = 0; m < M; ++m) {
      const __m512i xk = _mm512_loadu_si512(x + m * x_stride + k);
      x_sums[m] = _mm512_dpbusd_epi32(x_sums[m], flip, xk);  // 128 · Σx
      for (int n = 0; n < kTileRows; ++n) sums[m][n] = _mm512_dpbusd_epi32(sums[m][n], wk[n], xk);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < kTileRows; ++n) acc[m][n] += sum<int32_t>(_mm512_sub_epi32(sums[m][n], x_sums[m]));
  return K;
}

#else

// Widened to 16 bits, where a pair's sum cannot overflow; returns how much of K it did.
template <int M>
inline int64_t dot_tile_i8(const int8_t* x, int64_t x_stride, const int8_t* w, int64_t w_stride, int N, int64_t K,
                           int32_t (*acc)[kTileRows]) {
#ifdef __AVX2__
  __m256i sums[M][kTileRows];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < kTileRows; ++n) sums[m][n] = _mm256_setzero_si256();
  const auto widen = [](const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); };
  int64_t k = 0;
  for (; k + 16 <= K; k += 16) {
    __m256i wk[kTileRows];
    for (int n = 0; n < kTileRows; ++n) wk[n] = widen(w + (n < N ? n : 0) * w_stride + k);
    for (int m = 0; m < M; ++m) {
      const __m256i xk = widen(x + m * x_stride + k);
      for (int n = 0; n < kTileRows; ++n) sums[m][n] = _mm256_add_epi32(sums[m][n], _mm256_madd_epi16(wk[n], xk));
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < kTileRows; ++n) acc[m][n] += sum<int32_t>(sums[m][n]);
  return k;
#else
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) {
      int32_t s = 0;
      for (int64_t k = 0; k < K; ++k) s += static_cast<int16_t>(x[m * x_stride + k]) * static_cast<int16_t>(w[n * w_stride + k]);
      acc[m][n] += s;
    }
  return K;
#endif
}

#endif

void dot_i8(const int8_t* x, int64_t x_stride, int M, const int8_t* w, int64_t w_stride, int N, int64_t K,
            int32_t (*acc)[kTileRows]) {
  each_rows(M, [&](auto rows, int m) {
    constexpr int kCount = decltype(rows)::count;
    const int8_t* const xm = x + m * x_stride;
    const int64_t done = dot_tile_i8<kCount>(xm, x_stride, w, w_stride, N, K, acc + m);
    for (int i = 0; i < kCount; ++i)
      for (int n = 0; n < N; ++n)
        for (int64_t k = done; k < K; ++k) acc[m + i][n] += xm[i * x_stride + k] * w[n * w_stride + k];
  });
}

// ---- epilogue and quantisation -------------------------------------------------------------------------

void scale_row(Element to, const float* acc, float row_scale, const float* column_scale, const float* bias, void* out,
               int64_t n) {
  constexpr int64_t kChunk = 64;
  const int64_t bytes = to == Element::f32 ? 4 : 2;
  float y[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    for (int64_t j = 0; j < count; ++j) y[j] = acc[i + j] * row_scale;
    if (column_scale != nullptr)
      for (int64_t j = 0; j < count; ++j) y[j] *= column_scale[i + j];
    if (bias != nullptr)
      for (int64_t j = 0; j < count; ++j) y[j] += bias[i + j];
    from_float(to, y, static_cast<char*>(out) + i * bytes, count);
  }
}

float row_scale(const float* row, int64_t n, float quantized_max) {
  uint32_t absmax = 0;  // bits of magnitudes order as the magnitudes do, with NaN above infinity
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits(row[i]) & kMagnitude;
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  if (absmax >= kInfinity) return from_bits(0x7fc00000u);
  if (absmax == 0) return 1.0f;
  const float scale = from_bits(absmax) / quantized_max;
  const float smallest_normal = from_bits(0x00800000u);
  return scale < smallest_normal ? smallest_normal : scale;
}

template <class T, T (*convert)(float)>
inline void quantize(const float* row, float scale, float limit, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float q = row[i] / scale;
    out[i] = convert(q > limit ? limit : q < -limit ? -limit : q);
  }
}

// Ties to even by the ulp of 1.5 · 2²³, for |f| < 2²².
inline int8_t float_to_i8(float f) {
  constexpr float kRounder = 12582912.0f;
  return static_cast<int8_t>(bits(f + kRounder) - bits(kRounder));
}

void quantize_row(Element to, const float* row, float scale, void* out, int64_t n) {
  if (scale != scale) {
    memset(out, 0, static_cast<size_t>(n));
  } else if (to == Element::i8) {
    quantize<int8_t, float_to_i8>(row, scale, 127.0f, static_cast<int8_t*>(out), n);
  } else if (to == Element::e4m3) {
    quantize<uint8_t, float_to_float8<3, -6>>(row, scale, 448.0f, static_cast<uint8_t*>(out), n);
  } else {
    quantize<uint8_t, float_to_float8<2, -14>>(row, scale, 57344.0f, static_cast<uint8_t*>(out), n);
  }
}

}  // namespace

const Kernels& AOEXT_KERNELS() {
  static constexpr Kernels table{AOEXT_NAME,   to_float, from_float, dequantize_int4, dot_f32,   dot_values,
                                 arrange_int4, dot_int4, dot_i8,     scale_row,       row_scale, quantize_row};
  return table;
}

}  // namespace aoext::cpu
