// 8-bit weights, and x beside them, as operands of the matrix operation. In a k-step:
//
//   w   a lane reads 32 bytes of its own row, dwords d = 0 to 7
//   x   lane l reads x[2l] and x[2l + 1] of each row, so that a row is one coalesced load
//
// int8 × int8 is one matrix operation on the bytes as they are stored. Otherwise w becomes 16-bit floats, for two
// operations j = 0, 1: dword d of j is the bytes j and j + 2 of w's dword d, so that lane l of x is x[2l + j], its
// own low or high half.
//
// float8 × float8 is multiplied as bf16. So is fp16 × e5m2, with x as two bf16 limbs: as fp16 the small codes would be
// subnormal, which the matrix engine may take for zero.
#pragma once

#include "float8.h"
#include "tile.h"

namespace aoext::xpu {

// The type of the matrix operation's operands.
constexpr Element product_type(Element x, Element w) {
  if (x == Element::int8) return Element::int8;
  if (x == Element::fp32) return Element::fp32;
  return x == Element::fp16 && w != Element::e5m2 ? Element::fp16 : Element::bf16;
}

// The type to which w is decoded: the b of a float32 product is bf16.
constexpr Element decoded_type(Element product) { return product == Element::fp16 ? Element::fp16 : Element::bf16; }

// What lane l loads of a row of x in a k-step: x[2l] and x[2l + 1].
template <Element kX>
using Loaded = std::conditional_t<kX == Element::fp32, Vector<float, 2>,
                                  std::conditional_t<kX == Element::bf16 || kX == Element::fp16, uint32_t, uint16_t>>;

// Two fp16 as the sums of two bf16 limbs each: 8 + 8 significant bits hold fp16's 11.
struct Limbs {
  uint32_t first, rest;  // two bf16 each
};

inline Limbs limbs_of_fp16(uint32_t pair) {
  // A rest of 0 would turn an infinite weight into NaN. Instead the rest is then a number of x's sign, too small to change
  // a sum, and Inf where x is.
  const auto rest = [](float value) {
    const float first = sycl::bit_cast<float>(sycl::bit_cast<uint32_t>(value) & 0xFFFF0000u);
    return value == first ? value * 0x1p-100f : value - first;
  };
  const auto values = sycl::bit_cast<Halves>(pair);
  const float low = values[0], high = values[1];
  return {static_cast<uint32_t>(packed_bf16(low, high)), static_cast<uint32_t>(packed_bf16(rest(low), rest(high)))};
}

template <Element kX, Element kW>
struct EightBit {
  static constexpr Element kProduct = product_type(kX, kW);
  static constexpr bool kSplit = kX == Element::fp16 && kProduct == Element::bf16;
  static constexpr int kOperations = kProduct == Element::int8 ? 1 : 2;  // in a k-step
  static constexpr int kLimbs = kSplit ? 2 : 1;                          // of x
  static constexpr int kBits = 8;                                        // of w
  // What the sum of an operation's products is to be multiplied by.
  static constexpr float kOne = kProduct == Element::int8 ? 1.0f : kDecodedFactor<kW, decoded_type(kProduct)>;
  static constexpr float kFactor = kX == kW ? kOne * kOne : kOne;

  explicit EightBit(const float* /*table*/) {}

  static float factor() { return kFactor; }

  // Operation j's dword of the operand w.
  template <int J>
  static int decoded(int codes) {
    if constexpr (kProduct == Element::int8) {
      return codes;
    } else {
      return decoded_pair<kW, decoded_type(kProduct), J>(codes);
    }
  }

  // The operands of w in a k-step, from a lane's 32 bytes.
  static void decode(const char* codes, Dwords (&b)[kOperations]) {
    Vector<int, 4> quarters[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) quarters[i] = reinterpret_cast<const Vector<int, 4>*>(codes)[i];
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      b[0][d] = decoded<0>(quarters[d / 4][d % 4]);
      if constexpr (kOperations == 2) b[1][d] = decoded<1>(quarters[d / 4][d % 4]);
    }
  }

  // Those of block i of rows of x in k-step t from k on.
  template <int R, int B, class Output>
  static void input(const void* x, const Output& out, int K, int k, int t, int i,
                    typename Tile<kProduct, R>::A (&a)[kLimbs][kOperations]) {
    const auto* const own = static_cast<const Loaded<kX>*>(x) + (out.first_row * K + k) / 2 + out.lane;
    input<R>(own + t * kLanes, out.rows[i], static_cast<unsigned>(K) / 2, a);
  }

  // The operands of R rows of x; the lane's part of row r lies rows[r] · pitch further.
  template <int R>
  static void input(const Loaded<kX>* x, const int (&rows)[R], unsigned pitch,
                    typename Tile<kProduct, R>::A (&a)[kLimbs][kOperations]) {
    Loaded<kX> values[R];
#pragma unroll
    for (int r = 0; r < R; ++r) values[r] = x[static_cast<unsigned>(rows[r]) * pitch];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if constexpr (kProduct == Element::int8) {
        set<R>(a[0][0], r, static_cast<short>(values[r]));
      } else if constexpr (kX == Element::fp32) {
        set<R>(a[0][0], r, values[r][0]);
        set<R>(a[0][1], r, values[r][1]);
      } else if constexpr (kSplit) {
        const Limbs limbs = limbs_of_fp16(values[r]);
        set_halves<R>(a[0], r, limbs.first);
        set_halves<R>(a[1], r, limbs.rest);
      } else if constexpr (kX == Element::bf16 || kX == Element::fp16) {
        set_halves<R>(a[0], r, values[r]);
      } else {
        const uint32_t codes = values[r];
        set_halves<R>(a[0], r, decoded_pair<kX, Element::bf16, 0>((codes | codes << 8) & 0x00FF00FFu));
      }
    }
  }

 private:
  template <int R>
  static void set_halves(Vector<short, R> (&a)[2], int r, uint32_t pair) {
    set<R>(a[0], r, static_cast<short>(pair));
    set<R>(a[1], r, static_cast<short>(pair >> 16));
  }
};

}  // namespace aoext::xpu
