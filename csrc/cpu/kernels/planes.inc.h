// Weights whose codes lie in planes (common/layout.h): a row's codes as bytes in their order, and its scales and zero points as
// floats where blocks hold them. A loader a plane serves all formats.
#pragma once

#include "common/layout.h"
#include "cpu/kernels/convert.inc.h"

namespace aoext::cpu {
namespace {

// Codes at a time, one a byte. Runs of planes are of 32 of them and more, 16, or 8; or single bits lie in turn.
constexpr int kChunk = 32;
using Chunk = Bytes32;
using Longs = uint64_t AOEXT_VECTOR(kChunk);
constexpr uint64_t kOnes = 0x0101010101010101u;

// ---- a plane -------------------------------------------------------------------------------------------

// Digits to base 3 of codes i to i + 31 of a block, of which `block` is the first byte that has any.
inline Chunk digits_at(const uint8_t* block, int i) {
  static_assert(Digits::kFirst == kChunk && Digits::kSecond == 16 && Digits::kLast == 4);
  using Half = uint64_t AOEXT_VECTOR(16);
  using Words = uint32_t AOEXT_VECTOR(kChunk);
  const auto power = [&](int k) { return Longs{} + kOnes * static_cast<uint64_t>(Digits::power(Digits::digit_of(k))); };
  const auto halves = [](Longs low, Longs high) { return __builtin_shufflevector(low, high, 0, 1, 4, 5); };
  Chunk bytes, powers;
  if (i < Digits::kFirstEnd) {
    bytes = load<Chunk>(block), powers = (Chunk)power(i);
  } else {
    const Half v = load<Half>(block + Digits::kFirst);
    Longs of_bytes = __builtin_shufflevector(v, v, 0, 1, 0, 1), of_powers = halves(power(i), power(i + 16));
    if (i + 16 == Digits::kSecondEnd) {
      uint32_t four;
      memcpy(&four, block + Digits::kFirst + Digits::kSecond, sizeof four);
      of_bytes = halves(of_bytes, (Longs)(Words{} + four));
      of_powers = halves(of_powers, Longs{0x0303030301010101u, 0x1b1b1b1b09090909u, 0, 0});
    }
    bytes = (Chunk)of_bytes, powers = (Chunk)of_powers;
  }
  const Chunk rest = bytes * powers;  // modulo 256
  // The whole part of 3 · rest / 256.
  return ((Chunk)(rest >= 86) & 1) + ((Chunk)(rest >= 171) & 1);
}

// The bits that codes i to i + 31 of a block have in a plane, from bit `low` on.
template <Bits kBits>
inline Chunk plane_at(const uint8_t* block, int i, int low) {
  constexpr uint64_t kMask = kOnes * ((1u << kBits.bits) - 1);
  const uint8_t* const from = block + kBits.byte_of(i);
  const auto shift = [&](int run) { return static_cast<uint64_t>(kBits.shift_of(i + run * kBits.run)); };
  if constexpr (kBits.are_digits) {
    return digits_at(block + kBits.at, i);
  } else if constexpr (kBits.bits == 8) {
    return load<Chunk>(from);
  } else if constexpr (kBits.run % kChunk == 0) {
    const int right = kBits.shift_of(i) - low;
    const Longs v = load<Longs>(from);
    return (Chunk)((right >= 0 ? v >> right : v << -right) & (kMask << low));
  } else if constexpr (kBits.run == 16) {
    using Half = uint64_t AOEXT_VECTOR(16);
    const Half v = load<Half>(from);
    const Longs twice = __builtin_shufflevector(v, v, 0, 1, 0, 1);
    return (Chunk)((twice >> Longs{shift(0), shift(0), shift(1), shift(1)} & kMask) << low);
  } else if constexpr (kBits.run == 8) {
    uint64_t v;
    memcpy(&v, from, sizeof v);
    return (Chunk)(((Longs{} + v) >> Longs{shift(0), shift(1), shift(2), shift(3)} & kMask) << low);
  } else {
    static_assert(kBits.run == 1 && kBits.bits == 1);
    uint32_t v;
    memcpy(&v, from, sizeof v);
    using Words = uint32_t AOEXT_VECTOR(kChunk);
    const Chunk bytes = (Chunk)(Words{} + v);
    const Chunk eights = __builtin_shufflevector(bytes, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 18, 18, 18, 18, 18,
                                                 18, 18, 18, 19, 19, 19, 19, 19, 19, 19, 19);
    const Chunk bit = (Chunk)(Longs{} + 0x8040201008040201u);
    return (Chunk)((eights & bit) == bit) & (Chunk)(Longs{} + (kOnes << low));
  }
}

// ---- codes ---------------------------------------------------------------------------------------------

// Codes as they are multiplied: signed where the format's are, or what a table has for them; else unsigned, below 128.
template <Code kCode>
inline Chunk codes_at(const uint8_t* block, int i) {
  constexpr Layout kLayout = layout_of(kCode);
  constexpr Integer kOf = kLayout.code;
  Chunk codes = plane_at<kOf.planes[0]>(block, i, 0);
  if constexpr (kOf.planes[1].bits > 0) codes |= plane_at<kOf.planes[1]>(block, i, kOf.planes[0].bits);
  if constexpr (kOf.planes[2].bits > 0) codes |= plane_at<kOf.planes[2]>(block, i, kOf.planes[0].bits + kOf.planes[1].bits);
  if constexpr (kLayout.looks_up) codes = look_up_bytes(kIq4, codes);
  return codes;
}

template <Code kCode, bool kLessMiddle>
void unpack_codes(const uint8_t* blocks, int64_t count, char* out) {
  constexpr Layout kLayout = layout_of(kCode);
  static_assert(kLayout.values % kChunk == 0);
  constexpr uint8_t kMiddle = kLessMiddle && !kLayout.code.is_signed ? kLayout.code.middle : 0;
  for (int64_t b = 0; b < count; ++b, blocks += kLayout.bytes, out += kLayout.values)
#pragma GCC unroll 8
    for (int i = 0; i < kLayout.values; i += kChunk) store(out + i, codes_at<kCode>(blocks, i) - kMiddle);
}

// f with the code as a constant.
template <Code kCode>
struct OfCode {
  static constexpr Code code = kCode;
};

template <class F>
inline auto with_planes(Code code, const F& f) {
  switch (code) {
    case Code::int3: return f(OfCode<Code::int3>());
    case Code::int5: return f(OfCode<Code::int5>());
    case Code::int6: return f(OfCode<Code::int6>());
    case Code::int7: return f(OfCode<Code::int7>());
    case Code::q4_0: return f(OfCode<Code::q4_0>());
    case Code::q4_1: return f(OfCode<Code::q4_1>());
    case Code::q5_0: return f(OfCode<Code::q5_0>());
    case Code::q5_1: return f(OfCode<Code::q5_1>());
    case Code::q2_k: return f(OfCode<Code::q2_k>());
    case Code::q3_k: return f(OfCode<Code::q3_k>());
    case Code::q4_k: return f(OfCode<Code::q4_k>());
    case Code::q5_k: return f(OfCode<Code::q5_k>());
    case Code::q6_k: return f(OfCode<Code::q6_k>());
    case Code::iq4_nl: return f(OfCode<Code::iq4_nl>());
    case Code::iq4_xs: return f(OfCode<Code::iq4_xs>());
    case Code::tq2_0: return f(OfCode<Code::tq2_0>());
    case Code::tq1_0: return f(OfCode<Code::tq1_0>());
    default: return f(OfCode<Code::q8_0>());
  }
}

using UnpackCodes = void (*)(const uint8_t* blocks, int64_t count, char* out);

template <bool kLessMiddle>
inline UnpackCodes unpacker(Code code) {
  return with_planes(code, [](auto of) -> UnpackCodes { return unpack_codes<decltype(of)::code, kLessMiddle>; });
}

inline void unpack_planes(Code code, const uint8_t* blocks, int64_t count, char* out) {
  unpacker</*kLessMiddle=*/true>(code)(blocks, count, out);
}

// ---- scales and zero points ----------------------------------------------------------------------------

// Whether the integers of four groups lie in four bytes, at the same bits of each.
template <Integer kOf, int kGroups>
constexpr bool kInFours = [] {
  for (const Bits& plane : kOf.planes)
    for (int g = 0; plane.bits > 0 && g < kGroups; ++g)
      if (plane.byte_of(g) != plane.byte_of(g / 4 * 4) + g % 4 || plane.shift_of(g) != plane.shift_of(g / 4 * 4)) return false;
  return true;
}();

// Integers of groups g to g + 3, a byte each.
template <Integer kOf, int kGroups>
inline uint32_t four_at(const uint8_t* block, int g) {
  uint32_t all = 0;
  if constexpr (kInFours<kOf, kGroups>) {
    int low = 0;
    for (const Bits& plane : kOf.planes) {
      if (plane.bits == 0) continue;
      uint32_t four;
      memcpy(&four, block + plane.byte_of(g), sizeof four);
      all |= (four >> plane.shift_of(g) & static_cast<uint32_t>(kOnes) * ((1u << plane.bits) - 1)) << low;
      low += plane.bits;
    }
  } else {
    for (int i = 0; i < 4; ++i) all |= static_cast<uint32_t>(kOf.stored(block, g + i)) << 8 * i;
  }
  return all;
}

// kFloats integers of groups, from g on, in a register: bytes that are stored one by one cannot be loaded together at once.
template <Integer kOf, int kGroups>
inline auto integers_at(const uint8_t* block, int g) {
  const auto four = [&](int i) AOEXT_INLINE { return g + i < kGroups ? four_at<kOf, kGroups>(block, g + i) : 0; };
  if constexpr (kFloats == 4) {
    return four(0);
  } else if constexpr (kFloats == 8) {
    return four(0) | static_cast<uint64_t>(four(4)) << 32;
  } else {
    using Fours = uint32_t AOEXT_VECTOR(16);
    return Fours{four(0), four(4), four(8), four(12)};
  }
}

constexpr int64_t kBlocksAtOnce = 64;

// A number for each group of up to kBlocksAtOnce blocks, times `by`. Writes up to kFloats floats behind them.
template <GroupNumber kNumber, int kGroups, int kBytes>
inline void numbers_at(const uint8_t* blocks, int64_t count, float by, float* out) {
  uint16_t halves[kBlocksAtOnce + kFloats] = {};
  float of_blocks[kBlocksAtOnce + kFloats];
  if constexpr (kNumber.is_taken_off) by = -by;
  for (int64_t b = 0; b < count; ++b) memcpy(&halves[b], blocks + b * kBytes + kNumber.at, sizeof halves[b]);
  for (int64_t b = 0; b < count; b += kFloats)
    store((kNumber.has_factor() ? of_blocks : out) + b, floats_at<Element::fp16>(halves + b) * by);
  if constexpr (kNumber.has_factor()) {
    constexpr Integer kOf = kNumber.factor;
    static_assert(kGroups % 4 == 0 && kGroups <= 16 && (kOf.is_signed ? kOf.middle == 128 : kOf.bits() < 8));
    for (int64_t b = 0; b < count; ++b) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; g += kFloats) {
        const auto integers = integers_at<kOf, kGroups>(blocks + b * kBytes, g);
        F32 v = floats_at<Element::int8>(&integers);
        if constexpr (!kOf.is_signed && kOf.middle != 0) v -= static_cast<float>(kOf.middle);
        store(out + b * kGroups + g, v * of_blocks[b]);
      }
    }
  }
}

template <Code kCode>
void numbers_of_blocks(const uint8_t* blocks, int64_t count, float by, float* scales, float* zero_points) {
  constexpr Layout kLayout = layout_of(kCode);
  if constexpr (kLayout.group > 0) {
    constexpr int kGroups = kLayout.values / kLayout.group;
    for (int64_t b = 0; b < count; b += kBlocksAtOnce) {
      const int64_t n = count - b < kBlocksAtOnce ? count - b : kBlocksAtOnce;
      const uint8_t* const from = blocks + b * kLayout.bytes;
      numbers_at<kLayout.scale, kGroups, kLayout.bytes>(from, n, by, scales + b * kGroups);
      if constexpr (kLayout.zero_point.at >= 0)
        numbers_at<kLayout.zero_point, kGroups, kLayout.bytes>(from, n, by, zero_points + b * kGroups);
    }
  }
}

using NumbersOfBlocks = void (*)(const uint8_t* blocks, int64_t count, float by, float* scales, float* zero_points);

inline NumbersOfBlocks numbers_of(Code code) {
  return with_planes(code, [](auto of) -> NumbersOfBlocks { return numbers_of_blocks<decltype(of)::code>; });
}

inline void numbers_of_planes(Code code, const uint8_t* blocks, int64_t count, float by, float* scales, float* zero_points) {
  numbers_of(code)(blocks, count, by, scales, zero_points);
}

// `count` rows of kPanel floats as kPanel rows, `stride` floats apart, of which up to kFloats behind `count` are zeros.
inline void columns_to_rows(const float* columns, int64_t count, float* rows, int64_t stride) {
  for (int64_t g = 0; g < count; g += kFloats)
    for (int row = 0; row < kPanel; row += kFloats) {
      U32 words[kFloats];
      for (int i = 0; i < kFloats; ++i) words[i] = g + i < count ? load<U32>(columns + (g + i) * kPanel + row) : U32{};
      transpose_words(words);
      for (int i = 0; i < kFloats; ++i) store(rows + (row + i) * stride + g, words[i]);
    }
}

}  // namespace
}  // namespace aoext::cpu
