// Weights whose codes lie as common/layout.h says, a k-step of 32 codes at a time. The code of a weight is an argument of a
// kernel, so that one kernel serves all of them: where planes lie is found by uniform branches and shifts.
//
//   32 codes become 8 dwords of int8, in the order of k: dword d has those of k = 4 d + 0 … 3. So they are what eight_bit.h makes
//   of a weight of int8, whose operands of the matrix operation serve all layouts.
//
// A plane is unpacked by one of five functions: the bits of 32 bytes at one shift, or those of 16, 8, 8 or 4 bytes; digits by a
// sixth. Lengths of blocks and runs are powers of two. Every second block of 18, 22, 34, 54, 66, 110 or 210 bytes begins in the
// middle of a dword: what
// is loaded then are the aligned dwords that have its bytes, and no other.
#pragma once

#include "common/layout.h"
#include "numeric.h"
#include "shape.h"
#include "vector.h"

namespace aoext::xpu {

using CodeDwords = Vector<uint32_t, 8>;

// What kernels ask of a layout, with logarithms of lengths: run i of a plane lies in its bytes as layout.h's plane() has it.
struct Unpacking {
  struct Plane {
    uint8_t at, bits, run, span;  // a span is what lies in the bytes of a run
  };
  uint8_t values;
  uint8_t bytes;
  uint8_t middle;  // what is taken off a code; 0 where codes are signed
  bool is_inside, looks_up, are_digits;
  Plane planes[3];
};

constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

constexpr Unpacking unpacking_of(Code code) {
  Layout of = layout_of(code);
  if (code == Code::int2) of.values = 32, of.bytes = 8;  // 8 bytes of four codes are a block as others
  Unpacking u{};
  u.values = log2_of(of.values), u.bytes = of.bytes;
  u.middle = of.code.is_signed ? 0 : of.code.middle;
  u.is_inside = of.group > 0, u.looks_up = of.looks_up, u.are_digits = of.code.planes[0].are_digits;
  for (int i = 0; i < 3; ++i) {
    const Bits& plane = of.code.planes[i];
    if (plane.bits > 0)
      u.planes[i] = {static_cast<uint8_t>(plane.at), static_cast<uint8_t>(plane.bits), static_cast<uint8_t>(log2_of(plane.run)),
                     static_cast<uint8_t>(log2_of(plane.run * plane.per))};
  }
  return u;
}

constexpr Code kLastCode = Code::tq1_0;

struct Unpackings {
  Unpacking of[static_cast<int>(kLastCode) + 1];
};
constexpr Unpackings kUnpackings = [] {
  Unpackings all{};
  for (int code = 0; code <= static_cast<int>(kLastCode); ++code) all.of[code] = unpacking_of(static_cast<Code>(code));
  return all;
}();

class Planes {
 public:
  explicit Planes(Code code) : of_(kUnpackings.of[static_cast<int>(code)]) {}

  bool has_scales_inside() const { return of_.is_inside; }

  // What is taken off a code where scales and zero points lie beside the codes: the middle one, so that little cancels.
  int middle() const { return 1 << (of_.planes[0].bits + of_.planes[1].bits + of_.planes[2].bits - 1); }

  int64_t row_bytes(int K) const { return int64_t{K} * of_.bytes >> of_.values; }

  // The block of k, and k in it.
  const char* block(const char* row, int k) const { return row + (static_cast<unsigned>(k) >> of_.values) * of_.bytes; }
  int place(int k) const { return k & ((1 << of_.values) - 1); }

  // What the code of k stands for before scales and zero points; at any address.
  float at(const char* row, int k) const {
    const auto* const own = reinterpret_cast<const uint8_t*>(block(row, k));
    const int i = place(k);
    int code = 0, low = 0;
    if (of_.are_digits) return Digits::get(own[Digits::byte_of(i)], Digits::digit_of(i)) - of_.middle;
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      const auto& of = of_.planes[plane];
      if (of.bits == 0) break;
      const int byte = of.at + (i >> of.span << of.run) + (i & ((1 << of.run) - 1)), shift = (i & ((1 << of.span) - 1)) >> of.run;
      code |= (own[byte] >> shift * of.bits & ((1 << of.bits) - 1)) << low;
      low += of.bits;
    }
    if (of_.looks_up) return kIq4[code];
    return of_.middle == 0 && low == 8 ? static_cast<int8_t>(code) : code - of_.middle;
  }

  // The codes of k … k + 31 of a row; k is a multiple of 32.
  CodeDwords step(const char* row, int k) const {
    const char* const own = block(row, k);
    const int i = place(k);
    const auto &first = of_.planes[0], &second = of_.planes[1], &third = of_.planes[2];
    CodeDwords codes;
    if (of_.are_digits) {
      codes = digits(own, i);
    } else if (is_wide(first)) {
      codes = bytes(own, first, i);
    } else if (first.bits == 4) {
      codes = nibbles(own + first.at + i / 2);
    } else if (first.run > 0) {
      codes = quarters(own + first.at + i / 4);
    } else {
      codes = pairs(own + first.at + i / 4);
    }
    if (second.bits > 0) {
      CodeDwords above;
      if (is_wide(second)) {
        above = bytes(own, second, i);
      } else if (second.bits == 2) {
        above = quarters(own + second.at + i / 4);
      } else {
        above = singles(own + second.at + i / 8);
      }
      codes |= above << first.bits;
    }
    if (third.bits > 0) codes |= singles(own + third.at + i / 8) << (first.bits + second.bits);
    if (of_.looks_up) return looked_up(codes);
    const uint32_t off = has_scales_inside() ? of_.middle : middle();
    if (off == 0) return codes;
    return ((codes | 0x80808080u) - off * 0x01010101u) ^ 0x80808080u;  // no byte borrows of the next: codes are below 128
  }

 private:
  // kCount dwords, of which the first begins at any multiple of 2 bytes.
  template <int kCount>
  Vector<uint32_t, kCount> dwords(const char* p) const {
    using Loaded = Vector<uint32_t, kCount>;
    typedef Loaded Aligned4 __attribute__((aligned(4)));
    if (of_.bytes % 4 == 0) return *reinterpret_cast<const Aligned4*>(p);
    const auto address = reinterpret_cast<uintptr_t>(p);
    const bool between = address % 4 != 0;
    const auto* const from = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
    const Loaded low = *reinterpret_cast<const Aligned4*>(from);
    const uint32_t last = from[between ? kCount : kCount - 1];
    Loaded all;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t own = get<kCount>(low, i), next = i + 1 < kCount ? get<kCount>(low, i + 1) : last;
      set<kCount>(all, i, between ? own >> 16 | next << 16 : own);
    }
    return all;
  }

  static bool is_wide(const Unpacking::Plane& of) { return of.run >= 5 || of.bits == 8; }

  // 32 bytes that have some bits each.
  CodeDwords bytes(const char* block, const Unpacking::Plane& of, int i) const {
    const int rest = i & ((1 << of.span) - 1), at = of.at + (i >> of.span << of.run) + (rest & ((1 << of.run) - 1));
    return dwords<8>(block + at) >> (rest >> of.run) * of.bits & ((1u << of.bits) - 1) * 0x01010101u;
  }

  // Digits to base 3, which four bytes have for four codes.
  CodeDwords digits(const char* block, int i) const {
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      const uint32_t four = dwords<1>(block + Digits::byte_of(i + 4 * d));
      const auto power = static_cast<uint32_t>(Digits::power(Digits::digit_of(i + 4 * d)));
      const auto of_pair = [&](uint32_t pair) { return (pair * power & 0x00FF00FFu) * 3 >> 8 & 0x00030003u; };
      codes[d] = of_pair(four & 0x00FF00FFu) | of_pair(four >> 8 & 0x00FF00FFu) << 8;
    }
    return codes;
  }

  // 16 bytes of 4 bits, first all low ones.
  CodeDwords nibbles(const char* p) const {
    const auto w = dwords<4>(p);
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 4; ++d) codes[d] = w[d] & 0x0F0F0F0Fu, codes[d + 4] = w[d] >> 4 & 0x0F0F0F0Fu;
    return codes;
  }

  // 8 bytes of 2 bits, first all low ones.
  CodeDwords quarters(const char* p) const {
    const auto w = dwords<2>(p);
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 8; ++d) codes[d] = w[d % 2] >> d / 2 * 2 & 0x03030303u;
    return codes;
  }

  // 8 bytes of 2 bits, those of each byte side by side.
  CodeDwords pairs(const char* p) const {
    const auto w = dwords<2>(p);
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      const uint32_t four = w[d / 4] >> d % 4 * 8 & 0xFFu;
      const uint32_t two = four | four << 12;
      codes[d] = (two | two << 6) & 0x03030303u;
    }
    return codes;
  }

  // 4 bytes of 1 bit, those of each byte side by side.
  CodeDwords singles(const char* p) const {
    const uint32_t w = dwords<1>(p);
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 8; ++d) codes[d] = (w >> 4 * d & 15u) * 0x00204081u & 0x01010101u;
    return codes;
  }

  static CodeDwords looked_up(const CodeDwords& indices) {
    const auto sg = this_sub_group();
    const uint32_t own = static_cast<uint8_t>(kIq4[sg.get_local_linear_id()]);
    CodeDwords codes;
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      codes[d] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) codes[d] |= sycl::select_from_group(sg, own, indices[d] >> 8 * b & 15u) << 8 * b;
    }
    return codes;
  }

  const Unpacking of_;
};

struct ScaleAndZero {
  float scale, zero;
};

// Those that the block of a code has for its value i; the block begins at a multiple of 2 bytes, or anywhere.
template <Code kCode, bool kAnywhere>
inline ScaleAndZero scale_inside(const char* block, int i) {
  constexpr Layout kLayout = layout_of(kCode);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(block);
  const int group = static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(kLayout.group));
  const auto number = [&](const GroupNumber& of) {
    if (of.at < 0) return 0.0f;
    const auto half = kAnywhere ? static_cast<uint16_t>(bytes[of.at] | bytes[of.at + 1] << 8)
                                : *reinterpret_cast<const uint16_t*>(block + of.at);
    float value = fp16_to_float(half);
    if (of.has_factor()) value *= static_cast<float>(of.factor.get(bytes, group));
    return of.is_taken_off ? -value : value;
  };
  return {number(kLayout.scale), number(kLayout.zero_point)};
}

// Those of any code whose groups are multiples of kUnit; where that is 1, a block may begin anywhere.
template <int kUnit, int kCode = static_cast<int>(Code::q4_0)>
inline ScaleAndZero scale_inside(Code code, const char* block, int i) {
  if constexpr (kCode > static_cast<int>(kLastCode)) {
    return {};
  } else {
    constexpr Code kThis = static_cast<Code>(kCode);
    if constexpr (layout_of(kThis).group % kUnit == 0)
      if (code == kThis) return scale_inside<kThis, kUnit == 1>(block, i);
    return scale_inside<kUnit, kCode + 1>(code, block, i);
  }
}

// Where scales and zero points are [K / group_size, N] and lie beside the codes.
struct GroupScales {
  const void *scales, *zero_points;
  Element type;
  int64_t N;

  ScaleAndZero at(int64_t group, int64_t n) const {
    const int64_t i = group * N + n;
    return {load_float(scales, i, type), load_float(zero_points, i, type)};
  }
};

}  // namespace aoext::xpu
