// Numbers in memory to floats and back: high precision, float8, int8, int4.
namespace aoext::cpu {
namespace {

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

// ---- vectors -------------------------------------------------------------------------------------------

#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
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
#endif

// kFloats values.
template <Element kType>
inline F32 floats_at(const void* p) {
  if constexpr (kType == Element::f32) return load<F32>(p);
#ifdef AOEXT_AVX512
  if constexpr (kType == Element::bf16) return (F32)((U32)_mm512_maskz_cvtepu16_epi32(0xffff, load<__m256i>(p)) << 16);
  if constexpr (kType == Element::f16) return (F32)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(p));
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  if constexpr (kType == Element::i8) return (F32)_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, bytes));
  if constexpr (kType == Element::e5m2)
    return (F32)_mm512_maskz_cvtph_ps(0xffff, _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
#elif defined(AOEXT_AVX2)
  if constexpr (kType == Element::bf16) return (F32)((U32)_mm256_cvtepu16_epi32(load<__m128i>(p)) << 16);
  if constexpr (kType == Element::f16) return (F32)_mm256_cvtph_ps(load<__m128i>(p));
  const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
  if constexpr (kType == Element::i8) return (F32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  if constexpr (kType == Element::e5m2) return (F32)_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
#else
  if constexpr (kType == Element::bf16 || kType == Element::f16) {
    float values[kFloats];
    row_to_float<uint16_t, kType == Element::bf16 ? bf16_to_float : f16_to_float>(p, values, kFloats);
    return load<F32>(values);
  }
  U32 byte;
  for (int i = 0; i < kFloats; ++i) byte[i] = static_cast<const uint8_t*>(p)[i];
  if constexpr (kType == Element::i8) return __builtin_convertvector((I32)(byte << 24) >> 24, F32);
  // As f16_to_float.
  const U32 sign = (byte & 0x80) << 24, magnitude = (byte & 0x7f) << (kType == Element::e5m2 ? 21 : 20);
  const U32 normal = magnitude + (112u << 23), subnormal = (U32)((F32)((magnitude >> 13) + (126u << 23)) - 0.5f);
  const U32 finite = magnitude >= (1u << 23) ? normal : subnormal;
  if constexpr (kType == Element::e5m2) return (F32)((magnitude >= (0x7c00u << 13) ? normal + (112u << 23) : finite) | sign);
  return (F32)(((byte & 0x7f) == 0x7f ? finite | 0x7fc00000u : finite) | sign) * 256.0f;
#endif
}

// The same of a type that is known late.
inline F32 floats_at(Element type, const char* p) {
  if (type == Element::bf16) return floats_at<Element::bf16>(p);
  if (type == Element::f16) return floats_at<Element::f16>(p);
  return floats_at<Element::f32>(p);
}

// f(OfType<…>()) for an 8-bit type that is known late.
template <Element kType>
struct OfType {
  static constexpr Element type = kType;
};

template <class F>
inline void with_8bit_type(Element type, const F& f) {
  if (type == Element::i8) return f(OfType<Element::i8>());
  if (type == Element::e4m3) return f(OfType<Element::e4m3>());
  f(OfType<Element::e5m2>());
}

// 8-bit values as products take them: kVectors vectors at a time, to be multiplied by kFactor; whether NaN is kept.
template <Element kType>
struct Values {
  static constexpr int kVectors = 1;
  static constexpr float kFactor = 1;
  static void load(const void* p, F32 (&out)[kVectors]) { out[0] = floats_at<kType>(p); }
};

#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
// 16 halves.
inline void widen(__m256i halves, F32* out) {
#ifdef AOEXT_AVX512
  out[0] = (F32)_mm512_maskz_cvtph_ps(0xffff, halves);
#else
  out[0] = (F32)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  out[1] = (F32)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#endif
}

template <>
struct Values<Element::e4m3> {
  static constexpr int kVectors = 2;
  static constexpr float kFactor = 256;
  static void load(const void* p, F32 (&out)[kVectors]) {
#ifdef AOEXT_AVX512
    // As e4m3_halves, 32 values.
    constexpr __mmask32 kAll = ~__mmask32{0};
    const __m512i wide = _mm512_maskz_slli_epi16(kAll, _mm512_maskz_cvtepi8_epi16(kAll, aoext::cpu::load<__m256i>(p)), 7);
    const __m512i halves = _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xbfff)));
    widen(_mm512_castsi512_si256(halves), out);
    widen(_mm512_maskz_extracti64x4_epi64(0xf, halves, 1), out + 1);
#else
    widen(e4m3_halves(p), out);
#endif
  }
};
#endif

template <Element kType, class T, float (*convert)(T)>
inline void values_to_float(const void* source, float* out, int64_t n) {
  const T* s = static_cast<const T*>(source);
  int64_t i = 0;
#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
  if constexpr (kType == Element::e4m3) {
    constexpr int kVectors = 16 / kFloats;
    F32 v[kVectors];
    for (; i + 16 <= n; i += 16) {
      widen(e4m3_halves_and_nan(s + i), v);
      for (int j = 0; j < kVectors; ++j) store(out + i + j * kFloats, v[j] * Values<kType>::kFactor);
    }
  } else
#endif
    for (; i + kFloats <= n; i += kFloats) store(out + i, floats_at<kType>(s + i));
  for (; i < n; ++i) out[i] = convert(s[i]);
}

void to_float(Element from, const void* source, float* out, int64_t n) {
  switch (from) {
    case Element::bf16: return row_to_float<uint16_t, bf16_to_float>(source, out, n);
    case Element::f16: return row_to_float<uint16_t, f16_to_float>(source, out, n);
    case Element::f32: return row_to_float<float, identity>(source, out, n);
    case Element::i8: return values_to_float<Element::i8, int8_t, i8_to_float>(source, out, n);
    case Element::e4m3: return values_to_float<Element::e4m3, uint8_t, e4m3_to_float>(source, out, n);
    case Element::e5m2: return values_to_float<Element::e5m2, uint8_t, e5m2_to_float>(source, out, n);
    case Element::i32: return row_to_float<int32_t, i32_to_float>(source, out, n);
  }
}

// A line every few instructions, far from the next: those that nobody has fetched before are on their way while others are
// converted.
template <Element kFrom>
inline void columns_to_float(const char* source, int64_t stride, int64_t rows, int64_t n, float* out) {
  constexpr int64_t kBytes = kFrom == Element::f32 ? 4 : 2, kAhead = 32;
  for (int64_t r = 0; r < rows; ++r) {
    const char* const row = source + r * stride;
    for (int64_t i = 0; i < kTile * kBytes; i += kLine) {
      if (rows > kGroupsAhead) __builtin_prefetch(row + kTile * kBytes + i, 0, 2);
      if (r + kAhead < rows) __builtin_prefetch(row + kAhead * stride + i, 0, 2);
    }
    if (n == kTile)
      for (int64_t i = 0; i < kTile; i += kFloats) store(out + r * kTile + i, floats_at<kFrom>(row + i * kBytes));
    else
      to_float(kFrom, row, out + r * kTile, n);
  }
}

void columns_to_float(Element from, const void* source, int64_t stride, int64_t rows, int64_t n, float* out) {
  const char* const in = static_cast<const char*>(source);
  if (from == Element::bf16) return columns_to_float<Element::bf16>(in, stride, rows, n, out);
  if (from == Element::f16) return columns_to_float<Element::f16>(in, stride, rows, n, out);
  columns_to_float<Element::f32>(in, stride, rows, n, out);
}

void group_sums(Element from, const void* row, int64_t K, int64_t group_size, float* out, int64_t stride) {
  constexpr int64_t kChunk = 256;
  const int64_t bytes = from == Element::f32 ? 4 : 2;
  for (int64_t g = 0; g < K / group_size; ++g) {
    F32 sums = {};
    float rest = 0;
    for (int64_t i = 0; i < group_size; i += kChunk) {
      const int64_t n = group_size - i < kChunk ? group_size - i : kChunk;
      float values[kChunk];
      to_float(from, static_cast<const char*>(row) + (g * group_size + i) * bytes, values, n);
      int64_t j = 0;
      for (; j + kFloats <= n; j += kFloats) sums += load<F32>(values + j);
      for (; j < n; ++j) rest += values[j];
    }
    out[g * stride] = sum<float>(sums) + rest;
  }
}

void from_float(Element to, const float* source, void* out, int64_t n) {
  if (to == Element::bf16) return row_from_float<uint16_t, float_to_bf16>(source, out, n);
  if (to == Element::f16) return row_from_float<uint16_t, float_to_f16>(source, out, n);
  row_from_float<float, identity>(source, out, n);
}

#ifdef AOEXT_AVX512
constexpr __mmask64 kAllBytes = ~__mmask64{0};

// How a float8 becomes a bfloat16 by its bits: its magnitude moves up to bfloat16's exponent, whose bias is larger by kBias, but
// for subnormal magnitudes m, which are m · 2^kLowest, and those from kSpecial on, infinite or NaN.
template <Element kType>
struct Float8Bits {
  static constexpr bool kE5m2 = kType == Element::e5m2;
  static constexpr int kShift = kE5m2 ? 5 : 4, kBias = kE5m2 ? 112 : 120, kLowest = kE5m2 ? -16 : -9;
  static constexpr int kSubnormals = kE5m2 ? 4 : 8, kSpecial = kE5m2 ? 0x7c : 0x7f;
};

// Magnitudes of 8-bit values as bfloat16, which all of them are exactly: an int8's is a number of units as a float8's subnormals
// are.
template <Element kType>
constexpr uint16_t magnitude_as_bf16(int m) {
  int log2 = 0;
  while (m >> (log2 + 1) != 0) ++log2;
  const auto units = [&](int lowest) { return m == 0 ? 0 : (127 + lowest + log2) << 7 | (m << (7 - log2) & 0x7f); };
  if constexpr (kType == Element::i8) {
    return static_cast<uint16_t>(units(0));
  } else {
    using Bits = Float8Bits<kType>;
    if (m < Bits::kSubnormals) return static_cast<uint16_t>(units(Bits::kLowest));
    if (m >= Bits::kSpecial) return static_cast<uint16_t>(m << Bits::kShift | 0x7f80);
    return static_cast<uint16_t>((m << Bits::kShift) + (Bits::kBias << 7));
  }
}

template <Element kType>
struct Magnitudes {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr Magnitudes() {
    for (int m = 0; m < 128; ++m) {
      low[m] = static_cast<uint8_t>(magnitude_as_bf16<kType>(m));
      high[m] = static_cast<uint8_t>(magnitude_as_bf16<kType>(m) >> 8);
    }
  }
};

// 64 values: in each lane of 128 bits the first eight of its 16 become the first vector's, the others the second's.
template <Element kType>
inline void values_as_bf16(__m512i values, __m512i (&out)[2]) {
  static constexpr Magnitudes<kType> kMagnitudes;
  const auto look_up = [](const uint8_t (&table)[128], __m512i index) {  // seven bits of it count
    return _mm512_maskz_permutex2var_epi8(kAllBytes, load<__m512i>(table), index, load<__m512i>(table + 64));
  };
  const __m512i index = kType == Element::i8 ? _mm512_maskz_abs_epi8(kAllBytes, values) : values;
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  __m512i high = _mm512_ternarylogic_epi32(look_up(kMagnitudes.high, index), values, _mm512_set1_epi8(-128), kOrAnd);
  if constexpr (kType == Element::i8) {  // −128 has no magnitude in seven bits
    constexpr int kHighest = 0xc3;
    const __mmask64 lowest = _mm512_cmpeq_epi8_mask(values, _mm512_set1_epi8(-128));
    high = _mm512_mask_mov_epi8(high, lowest, _mm512_set1_epi8(static_cast<char>(kHighest)));
  }
  const __m512i low = look_up(kMagnitudes.low, index);
  out[0] = _mm512_maskz_unpacklo_epi8(kAllBytes, low, high);
  out[1] = _mm512_maskz_unpackhi_epi8(kAllBytes, low, high);
}
#endif

template <Element kType>
inline int64_t values_to_bf16([[maybe_unused]] const void* source, [[maybe_unused]] uint16_t* out, [[maybe_unused]] int64_t n) {
  int64_t i = 0;
#ifdef AOEXT_AVX512
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // in which the first 32 come first
  for (; i + 64 <= n; i += 64) {
    __m512i halves[2];
    values_as_bf16<kType>(_mm512_maskz_permutexvar_epi64(0xff, order, load<__m512i>(static_cast<const char*>(source) + i)),
                          halves);
    store(out + i, halves[0]);
    store(out + i + 32, halves[1]);
  }
#endif
  return i;
}

// Values as they are where an instruction set has a way; the rest by way of floats in the first cache.
void to_bf16(Element from, const void* source, void* out, int64_t n) {
  uint16_t* o = static_cast<uint16_t*>(out);
  if (from == Element::bf16) {
    memcpy(out, source, static_cast<size_t>(n) * 2);
    return;
  }
  const int64_t done = from == Element::i8     ? values_to_bf16<Element::i8>(source, o, n)
                       : from == Element::e4m3 ? values_to_bf16<Element::e4m3>(source, o, n)
                       : from == Element::e5m2 ? values_to_bf16<Element::e5m2>(source, o, n)
                                               : 0;
  source = static_cast<const char*>(source) + done;  // of one byte each
  o += done;
  n -= done;
  constexpr int64_t kChunk = 256;
  const int64_t bytes = from == Element::f32 || from == Element::i32 ? 4 : from == Element::f16 ? 2 : 1;
  float values[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    to_float(from, static_cast<const char*>(source) + i * bytes, values, count);
    from_float(Element::bf16, values, o + i, count);
  }
}

// ---- int4 ----------------------------------------------------------------------------------------------

// A nibble's two's complement value: the XOR moves −8..7 to 0..15 in order, the subtraction moves it back.
inline int8_t sign_extend(int nibble) { return static_cast<int8_t>((nibble ^ 8) - 8); }

#ifdef AOEXT_AVX512
// What each nibble stands for.
inline F32 values_of_nibbles() { return F32{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}; }
#endif

constexpr int64_t kNibbles = 32;  // of 16 bytes, which vectors unpack at a time

// n elements of a group, whole lots of kNibbles, as q · s + z.
inline void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, float* out) {
  for (int64_t k = 0; k < n; k += kNibbles) {
    int8_t q[kNibbles];
#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
    const __m128i bytes = load<__m128i>(packed + k / 2), low = _mm_set1_epi8(15);
    const __m128i values = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m128i even = _mm_shuffle_epi8(values, _mm_and_si128(bytes, low));
    const __m128i odd = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    store(q, _mm_unpacklo_epi8(even, odd));
    store(q + 16, _mm_unpackhi_epi8(even, odd));
#else
    for (int64_t i = 0; i < kNibbles / 2; ++i) {
      q[2 * i] = sign_extend(packed[k / 2 + i] & 15);
      q[2 * i + 1] = sign_extend(packed[k / 2 + i] >> 4);
    }
#endif
    for (int64_t i = 0; i < kNibbles; i += kFloats) store(out + k + i, floats_at<Element::i8>(q + i) * s + z);
  }
}

inline void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, uint16_t* out) {
#ifdef AOEXT_AVX512
  // The group's sixteen values, twice: an index into words takes five bits, and the fifth is another nibble's.
  const F32 values = values_of_nibbles() * s + z;
  const __m512i table = _mm512_maskz_broadcast_i64x4(0xff, (__m256i)_mm512_cvtneps_pbh((__m512)values));
  for (int64_t k = 0; k < n; k += kNibbles) {
    const __m512i bytes = _mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>(packed + k / 2));
    const U32 words = (U32)bytes | (U32)bytes << 12;
    store(out + k, _mm512_maskz_permutexvar_epi16(~__mmask32{0}, (__m512i)words, table));
  }
#else
  float values[kNibbles];
  for (int64_t k = 0; k < n; k += kNibbles) {
    dequantize_group(packed + k / 2, kNibbles, s, z, values);
    row_from_float<uint16_t, float_to_bf16>(values, out + k, kNibbles);
  }
#endif
}

template <class T>
inline void dequantize_int4_as(const Int4Row& row, int64_t begin, int64_t n, T* out) {
  const uint8_t* const packed = row.packed + begin / 2;
  int64_t g = begin / row.group_size, left = row.group_size - begin % row.group_size;  // of the group in hand
  if (row.group_size % kNibbles == 0 && begin % kNibbles == 0) {
    for (int64_t i = 0; i < n; ++g, left = row.group_size) {
      const int64_t count = left < n - i ? left : n - i;
      dequantize_group(packed + i / 2, count, row.scale[g * kTile], row.zero_point[g * kTile], out + i);
      i += count;
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int nibble = i % 2 == 0 ? packed[i / 2] & 15 : packed[i / 2] >> 4;
    const float value = static_cast<float>(sign_extend(nibble)) * row.scale[g * kTile] + row.zero_point[g * kTile];
    if constexpr (sizeof(T) == 4)
      out[i] = value;
    else
      out[i] = float_to_bf16(value);
    if (--left == 0) {
      ++g;
      left = row.group_size;
    }
  }
}

constexpr float kWideZeroPoint = 8;  // scales: the smallest q is −8

bool has_wide_zero_points(const float* scale, const float* zero_point, int64_t groups) {
  F32 widest = {};
  for (int64_t i = 0; i < groups * kTile; i += kFloats) {
    const F32 beyond = magnitude(load<F32>(zero_point + i)) - kWideZeroPoint * magnitude(load<F32>(scale + i));
    widest = beyond > widest ? beyond : widest;
  }
  bool wide = false;
  for (int i = 0; i < kFloats; ++i) wide |= widest[i] > 0;
  return wide;
}

// The weights' part is 16 |scale| − |zero_point|, or nothing: the closer to 8 scales, the closer to 0 is a weight that must not
// grow.
void split_zero_points(const float* scale, float* zero_point, int64_t groups, float* beside) {
  for (int64_t i = 0; i < groups * kTile; i += kFloats) {
    const F32 zero = load<F32>(zero_point + i), size = magnitude(zero), most = kWideZeroPoint * magnitude(load<F32>(scale + i));
    const F32 left = 2 * most - size, positive = left > 0 ? left : F32{};
    const F32 within = size > most ? (F32)((U32)positive | ((U32)zero & kSign)) : zero;
    store(zero_point + i, within);
    store(beside + i, size > most ? zero - within : F32{});
  }
}

void dequantize_int4(const Int4Row& row, int64_t begin, int64_t n, Element to, void* out) {
  if (to == Element::bf16) return dequantize_int4_as(row, begin, n, static_cast<uint16_t*>(out));
  dequantize_int4_as(row, begin, n, static_cast<float*>(out));
}

}  // namespace
}  // namespace aoext::cpu
