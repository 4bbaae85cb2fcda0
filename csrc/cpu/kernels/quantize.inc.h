// What comes after a product, and dynamic quantisation: loops over one row.
namespace aoext::cpu {
namespace {

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

// The largest magnitude of n floats of whatever format, as its bits: they order as magnitudes do, with NaN above infinity.
template <class Bits>
inline Bits largest(const void* row, int64_t n) {
  constexpr Bits kMagnitudes = static_cast<Bits>(~Bits{0}) >> 1;
  const char* const source = static_cast<const char*>(row);
  Bits absmax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Bits magnitude = load<Bits>(source + i * int64_t{sizeof(Bits)}) & kMagnitudes;
    absmax = magnitude > absmax ? magnitude : absmax;
  }
  return absmax;
}

float row_scale(Element from, const void* row, int64_t n, float quantized_max) {
  float absmax;
  if (from == Element::f32) {
    absmax = from_bits(largest<uint32_t>(row, n));
  } else {
    const uint16_t narrow = largest<uint16_t>(row, n);
    to_float(from, &narrow, &absmax, 1);
  }
  if (bits(absmax) >= kInfinity) return from_bits(0x7fc00000u);
  if (absmax == 0) return 1.0f;
  const float scale = absmax / quantized_max;
  const float smallest_normal = from_bits(0x00800000u);
  return scale < smallest_normal ? smallest_normal : scale;
}

// x / scale as IEEE rounds it, wherever that is above 2⁻¹⁰⁰: x times a power of two, then by a number in [1, 2), by its
// reciprocal and one correction, which a division takes longer than. Right for all numerators and divisors
// (tools/division_cases.cpp).
struct Division {
#if defined(AOEXT_AVX512) || defined(AOEXT_AVX2)
  float power, divisor, reciprocal;

  explicit Division(float scale)
      : power(from_bits((254u << 23) - (bits(scale) & kInfinity))),
        divisor(from_bits((bits(scale) & 0x007fffffu) | 0x3f800000u)),
        reciprocal(1.0f / divisor) {}
  float operator()(float x) const {
    const float t = x * power, q = t * reciprocal;
    return __builtin_fmaf(-__builtin_fmaf(q, divisor, -t), reciprocal, q);
  }
#else
  float scale;
  explicit Division(float scale_) : scale(scale_) {}
  float operator()(float x) const { return x / scale; }
#endif
};

template <class T, T (*convert)(float)>
inline void quantize(const float* row, float scale, float limit, T* out, int64_t n) {
  constexpr int64_t kChunk = 64;
  const Division quotient(scale);
  float clamped[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = n - i < kChunk ? n - i : kChunk;
    for (int64_t j = 0; j < count; ++j) {
      const float q = quotient(row[i + j]);
      clamped[j] = q > limit ? limit : q < -limit ? -limit : q;
    }
    // A loop of its own: in one, GCC converts the limits apart, and blends bytes by masks of floats.
    for (int64_t j = 0; j < count; ++j) out[i + j] = convert(clamped[j]);
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
}  // namespace aoext::cpu
