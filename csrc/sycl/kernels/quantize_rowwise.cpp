// Dynamic quantisation: of each row of x [M, K]
//
//   scale = max |x| / limit        (1 for a row of zeros, at least the smallest normal number, NaN where x has Inf or NaN)
//   value = x / scale              in float32, rounded to int8, e4m3 or e5m2, at most ±limit, and 0 where scale is NaN
//
// x is read once: `sub_groups` sub-groups quantise a row, and each lane keeps up to 2 pieces of 8 of its elements in
// registers, as floats. That is 16384 elements in a work-group of 64 sub-groups; the rest of longer rows is read again, from
// a cache. Neighbouring lanes read and write neighbouring pieces. A work-group of more sub-groups quantises several rows.
//
// The bits are those of every other device, whatever this one makes of a division (OpenCL allows 2.5 ulp) and of
// subnormal numbers (it may flush them): quotients are corrected by exact remainders of numbers near 1.
#include "float8_encode.h"
#include "kernel.h"
#include "piece.h"

namespace aoext::xpu {
namespace {

constexpr int kKept = 2;      // pieces of a row that a lane keeps
constexpr int kMaxTeam = 64;  // in a work-group
constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7F800000u, kSmallestNormal = 0x00800000u;

inline uint32_t bits(float f) { return sycl::bit_cast<uint32_t>(f); }
inline float from_bits(uint32_t u) { return sycl::bit_cast<float>(u); }

// a / b to nearest, for b in [1, 2) and its reciprocal to nearest. The first correction leaves less than an ulp;
// from there the second is exact (Markstein, IA-64 and Elementary Functions, theorem 8.1).
inline float divide_near_1(float a, float b, float reciprocal) {
  float q = a * reciprocal;
  q = sycl::fma(sycl::fma(-q, b, a), reciprocal, q);
  return sycl::fma(sycl::fma(-q, b, a), reciprocal, q);
}

// 1 / b to nearest, for b in [1, 2): the neighbour of an estimate that leaves the smallest remainder. No
// reciprocal lies in the middle of two floats.
inline float reciprocal_near_1(float b) {
  float r = 1.0f / b;
  r = sycl::fma(sycl::fma(-r, b, 1.0f), r, r);
  float best = r;
#pragma unroll
  for (int step = -1; step <= 1; step += 2) {
    const float other = from_bits(bits(r) + step);
    if (sycl::fabs(sycl::fma(-other, b, 1.0f)) < sycl::fabs(sycl::fma(-best, b, 1.0f))) best = other;
  }
  return best;
}

// The scale as bits, of a row whose largest magnitude is finite and not 0.
inline uint32_t row_scale(uint32_t absmax, Element output_type) {
  const bool subnormal = absmax < kSmallestNormal;
  const uint32_t a = subnormal ? bits(static_cast<float>(absmax)) : absmax;  // times 2^149
  // limit = 127 = 1.984375 · 2^6, 448 = 1.75 · 2^8 or 57344 = 1.75 · 2^15
  const bool int8 = output_type == Element::int8;
  const float limit = int8 ? 1.984375f : 1.75f, reciprocal = int8 ? 64.0f / 127.0f : 4.0f / 7.0f;
  const int limit_exponent = int8 ? 6 : output_type == Element::e4m3 ? 8 : 15;
  const uint32_t q = bits(divide_near_1(from_bits((a & 0x007FFFFFu) | 0x3F800000u), limit, reciprocal));
  const int shift = static_cast<int>(a >> 23) - (subnormal ? 149 : 0) - 127 - limit_exponent;
  return static_cast<int>(q >> 23) + shift < 1 ? kSmallestNormal : q + (static_cast<uint32_t>(shift) << 23);
}

// x / scale for all x of a row: times a power of two, which is exact, then by a number near 1.
struct Division {
  float power, near_1, reciprocal;
  float subnormal_power;  // the power times the smallest subnormal number
  bool reaches_subnormals;

  explicit Division(uint32_t scale) {
    const int exponent = static_cast<int>(scale >> 23) - 127;
    power = from_bits(static_cast<uint32_t>(127 - exponent) << 23);
    near_1 = from_bits((scale & 0x007FFFFFu) | 0x3F800000u);
    reciprocal = reciprocal_near_1(near_1);
    // Beside a larger scale a subnormal x is less than half of any code's step.
    reaches_subnormals = exponent < -100;
    subnormal_power = from_bits(static_cast<uint32_t>(reaches_subnormals ? 127 - 149 - exponent : 1) << 23);
  }

  template <int kCount>
  Piece<kCount> times_power(Piece<kCount> piece) const {
    if (!reaches_subnormals) return piece * power;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const uint32_t x = bits(get<kCount>(piece, j)), magnitude = x & ~kSign;
      const float subnormal = from_bits(bits(static_cast<float>(magnitude) * subnormal_power) | (x & kSign));
      set<kCount>(piece, j, magnitude < kSmallestNormal ? subnormal : get<kCount>(piece, j) * power);
    }
    return piece;
  }

  float operator()(float times_power) const { return divide_near_1(times_power, near_1, reciprocal); }
};

template <int kCount>
inline uint32_t absmax_of(const Piece<kCount>& piece, uint32_t other) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) other = sycl::max(other, bits(get<kCount>(piece, j)) & ~kSign);
  return other;
}

// encode(x) is one byte.
template <int kCount, class Encode>
inline void store(void* values, int i, const Piece<kCount>& piece, bool inside, const Encode& encode) {
  if constexpr (kCount == 1) {
    const auto code = static_cast<uint8_t>(encode(piece));
    if (inside) static_cast<uint8_t*>(values)[i] = code;
  } else {
    Vector<uint32_t, kCount / 4> codes(0);
#pragma unroll
    for (int j = 0; j < kCount; ++j) codes[j / 4] |= encode(piece[j]) << (8 * (j % 4));
    if (inside) static_cast<Vector<uint32_t, kCount / 4>*>(values)[i] = codes;
  }
}

template <int kCount>
inline void quantize_rowwise(void* values, float* scales, const void* input, int64_t M, int K, Element input_type,
                             Element output_type, int sub_groups) {
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int s = sg.get_group_linear_id(), lane = sg.get_local_linear_id();
  const int rows = static_cast<int>(sg.get_group_linear_range()) / sub_groups, row = s / sub_groups;
  const int step = sub_groups * kLanes, first = (s - row * sub_groups) * kLanes + lane, count = K / kCount;
  uint32_t* const partial = local_memory<uint32_t, kMaxTeam>();

  for (int64_t block = static_cast<int64_t>(item.get_group(0)) * rows; block < M;
       block += static_cast<int64_t>(item.get_group_range(0)) * rows) {
    const int64_t m = sycl::min(block + row, M - 1);
    const void* const x = static_cast<const char*>(input) + m * K * (input_type == Element::fp32 ? 4 : 2);
    Piece<kCount> kept[kKept];
    uint32_t absmax = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = load_piece<kCount>(x, sycl::min(first + i * step, count - 1), input_type);
#pragma unroll
    for (int i = 0; i < kKept; ++i) absmax = absmax_of<kCount>(kept[i], absmax);
    for (int base = kKept * step; base < count; base += step)
      absmax = absmax_of<kCount>(load_piece<kCount>(x, sycl::min(base + first, count - 1), input_type), absmax);
    absmax = sycl::reduce_over_group(sg, absmax, sycl::maximum<uint32_t>());
    if (sub_groups > 1) {
      partial[s] = absmax;
      sycl::group_barrier(item.get_group());
      for (int i = lane; i < sub_groups; i += kLanes) absmax = sycl::max(absmax, partial[row * sub_groups + i]);
      absmax = sycl::reduce_over_group(sg, absmax, sycl::maximum<uint32_t>());
      sycl::group_barrier(item.get_group());
    }

    const bool finite = absmax < kInfinity;
    const uint32_t scale = absmax == 0 ? bits(1.0f) : row_scale(absmax, output_type);
    const uint32_t kept_bits = finite ? 0xFFu : 0;
    const Division divide(scale);
    const int end = block + row < M ? count : 0;  // a row past M stores nothing
    if (first < sycl::min(end, 1)) scales[m] = from_bits(finite ? scale : 0x7FC00000u);
    void* const out = static_cast<char*>(values) + m * K;
    // Kept pieces shift up each time, so that one copy of this code stores them all; the next piece of a longer row is
    // loaded behind them. Lanes past the end go on, so that control flow is uniform: branches, not masks.
    const auto store_row = [&](const auto& encode) {
      for (int base = 0; base < count; base += step) {
        const int i = base + first;
        const auto piece = divide.times_power<kCount>(kept[0]);
#pragma unroll
        for (int j = 1; j < kKept; ++j) kept[j - 1] = kept[j];
        if (base + kKept * step < count)
          kept[kKept - 1] = load_piece<kCount>(x, sycl::min(i + kKept * step, count - 1), input_type);
        store<kCount>(out, i, piece, i < end, encode);
      }
    };
    // A quotient is at most two roundings of float32 above the limit, which rounding to the format takes back.
    if (output_type == Element::int8) {
      store_row([&](float a) { return bits(divide(a) + 12582912.0f) & kept_bits; });  // 1.5 · 2^23, whose ulp is 1
    } else {
      const Float8Format format = output_type == Element::e4m3 ? kE4m3Format : kE5m2Format;
      store_row([&](float a) { return (encode_float8(sycl::fabs(divide(a)), format) | (bits(a) >> 31 << 7)) & kept_bits; });
    }
  }
}

}  // namespace
}  // namespace aoext::xpu

// K is a multiple of 8, x starts at a 16-byte boundary, values at one of 8 bytes.
AOEXT_KERNEL(quantize_rowwise_wide)
(void* values, float* scales, const void* input, int64_t M, int K, Element input_type, Element output_type, int sub_groups) {
  aoext::xpu::quantize_rowwise<8>(values, scales, input, M, K, input_type, output_type, sub_groups);
}

AOEXT_KERNEL(quantize_rowwise_any)
(void* values, float* scales, const void* input, int64_t M, int K, Element input_type, Element output_type, int sub_groups) {
  aoext::xpu::quantize_rowwise<1>(values, scales, input, M, K, input_type, output_type, sub_groups);
}

// The same for each block [1, block] of a row, the last of which may be shorter: scales [M, ceil(K/block)], rounded up to powers
// of two where asked. A block belongs to a sub-group, whose lanes read it twice, from a cache the second time.
AOEXT_KERNEL(quantize_blockwise)
(void* values, float* scales, const void* input, int64_t M, int K, int block, Element input_type, Element output_type,
 int power_of_two) {
  using namespace aoext::xpu;
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int blocks = static_cast<int>((static_cast<unsigned>(K) + block - 1u) / static_cast<unsigned>(block));
  const int64_t together = sg.get_group_linear_range(), total = M * blocks;
  for (int64_t i = static_cast<int64_t>(item.get_group(1)) * together + sg.get_group_linear_id(); i < total;
       i += static_cast<int64_t>(item.get_group_range(1)) * together) {
    const int64_t m = i / blocks;
    const int begin = static_cast<int>(i - m * blocks) * block, length = sycl::min(block, K - begin);
    const int64_t first = m * K + begin;
    uint32_t absmax = 0;
    for (int base = 0; base < length; base += kLanes)
      absmax = absmax_of<1>(load_piece<1>(input, first + sycl::min(base + lane, length - 1), input_type), absmax);
    absmax = sycl::reduce_over_group(sg, absmax, sycl::maximum<uint32_t>());
    const bool finite = absmax < kInfinity;
    uint32_t scale = absmax == 0 ? bits(1.0f) : row_scale(finite ? absmax : kSmallestNormal, output_type);
    if (power_of_two != 0 && (scale & 0x007FFFFFu) != 0) scale = (scale & kInfinity) + kSmallestNormal;
    const uint32_t kept_bits = finite ? 0xFFu : 0;
    const Division divide(scale);
    if (lane == 0) scales[i] = from_bits(finite ? scale : 0x7FC00000u);
    const Float8Format format = output_type == Element::e4m3 ? kE4m3Format : kE5m2Format;
    for (int base = 0; base < length; base += kLanes) {
      const int k = base + lane;
      const float x = load_piece<1>(input, first + sycl::min(k, length - 1), input_type);
      const float a = divide(divide.times_power<1>(x));
      const uint32_t code = output_type == Element::int8 ? bits(a + 12582912.0f)  // 1.5 · 2^23, whose ulp is 1
                                                         : encode_float8(sycl::fabs(a), format) | (bits(x) >> 31 << 7);
      if (k < length) static_cast<uint8_t*>(values)[first + k] = static_cast<uint8_t>(code & kept_bits);
    }
  }
}
