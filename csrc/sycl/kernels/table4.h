// Codes of 4 bits as operands of the matrix operation, by a table of 16 float32 of which each lane holds one.
//
// A dword of w holds k = 8 e + 0 … 7 of a lane's own row. Its nibbles j and j + 4 become a dword of two 16-bit floats, so that
// what int4_input.h makes of x serves where scales belong to 32 k at least. Where they belong to 16, operation j multiplies those
// from 16 j on: dwords e = 2 j, then 2 j + 1, and in lane l the x whose place is l with its lowest three bits rotated.
//
// A lookup is a register that is chosen by another one: six instructions a code. The table of e2m1, of mxfp4 and nvfp4, is
// recognised; its codes have the sign, the exponent and the mantissa of fp16, a few bits further down: four instructions a code.
#pragma once

#include "float8.h"
#include "int4_input.h"
#include "int4_weight.h"

namespace aoext::xpu {

template <Element kType>
inline uint16_t rounded(float value) {
  return kType == Element::bf16 ? float_to_bf16(value) : float_to_fp16(value);
}

// Nibbles J and J + 4 of a dword as e2m1, two fp16: sign, exponent and mantissa go where fp16 has them, whose bias is 14 higher.
constexpr float kE2m1Factor = 0x1p14f;  // what the caller multiplies by; small codes are subnormal until then

template <int J>
inline uint32_t e2m1_pair(uint32_t w) {
  return (shifted<12 - 4 * J>(w) & 0x80008000u) | (shifted<9 - 4 * J>(w) & 0x0E000E00u);
}

// kType: of x and of the operands, bf16 or fp16. Where it does not hold all numbers of the table, these are divided by the
// largest before they are rounded, which is exact then, as its weights count most. (Numbers up to 128 leave fp16 room for small
// ones.)
template <Element kType, int kScaleK>
class Table4 {
 public:
  static constexpr Element kProduct = kType;
  static constexpr int kOperations = 2, kLimbs = 1, kBits = 4;

  explicit Table4(const float* table) : factor_(1) {
    const auto sg = this_sub_group();
    const int lane = sg.get_local_linear_id();
    const float own = table[lane];
    const float largest = sycl::reduce_over_group(sg, sycl::fabs(own), sycl::maximum<float>());
    const bool exact = sycl::all_of_group(sg, a_to_float<kType>(rounded<kType>(own)) == own);
    const bool in_range = kType == Element::bf16 || largest <= 128;
    if (!(exact && in_range) && largest > 0 && !sycl::isinf(largest)) factor_ = largest;
    low_ = rounded<kType>(own / factor_);
    high_ = low_ << 16;
    is_e2m1_ = sycl::all_of_group(sg, fp16_to_float(static_cast<uint16_t>(e2m1_pair<0>(lane))) * kE2m1Factor == own);
    if (kType == Element::bf16 && is_e2m1_) factor_ = kE2m1Factor;
  }

  // What the sum of an operation's products is to be multiplied by.
  float factor() const { return factor_; }

  void decode(const char* codes, Dwords (&b)[2]) const {
    const auto packed = *reinterpret_cast<const Vector<uint32_t, 4>*>(codes);
    const auto unpack = [&](const auto& pair) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int pairs[4]{pair(packed[e], std::integral_constant<int, 0>()), pair(packed[e], std::integral_constant<int, 1>()),
                           pair(packed[e], std::integral_constant<int, 2>()), pair(packed[e], std::integral_constant<int, 3>())};
#pragma unroll
        for (int j = 0; j < 4; ++j) b[kLong ? j / 2 : e / 2][kLong ? e + j % 2 * 4 : e % 2 * 4 + j] = pairs[j];
      }
    };
    if (is_e2m1_) {
      unpack([](uint32_t w, auto j) {
        const uint32_t pair = e2m1_pair<decltype(j)::value>(w);
        if constexpr (kType == Element::bf16) {
          return packed_bf16(fp16_to_float(static_cast<uint16_t>(pair)), fp16_to_float(static_cast<uint16_t>(pair >> 16)));
        } else {  // the matrix engine may take subnormal numbers for zero
          return sycl::bit_cast<int>(sycl::bit_cast<Halves>(pair) * Halves(kE2m1Factor));
        }
      });
    } else {
      const auto sg = this_sub_group();
      unpack([&](uint32_t w, auto j) {
        const uint32_t low = (w >> 4 * j) & 15, high = (w >> (4 * j + 16)) & 15;
        return static_cast<int>(sycl::select_from_group(sg, low_, low) | sycl::select_from_group(sg, high_, high));
      });
    }
  }

  // The operands of block i of rows of x in k-step t from k on; from kArrangedRows rows on and for long groups x is what
  // arrange_input made of it.
  template <int R, int B, class Output>
  static void input(const void* x, const Output& out, int K, int k, int t, int i, Vector<short, R> (&a)[1][2]) {
    const auto* const values = static_cast<const uint16_t*>(x);
    if constexpr (kLong && R * B >= kArrangedRows) {
      load_arranged<R>(values + out.arranged_row * K + k * R + (i * K + t * kStep) * R, out.lane, a[0]);
    } else if constexpr (kLong) {
      const auto* const own = reinterpret_cast<const char*>(values + out.first_row * K + k + out.lane % 8 * 4);
      load_input<kType, R>(own + t * kStep * 2, out.rows[i], K * 2, out.lane, a[0]);
    } else {
      const uint16_t* const own =
          values + out.first_row * K + k + t * kStep + ((out.lane & 8) | (out.lane >> 1 & 3) | (out.lane & 1) << 2);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const uint16_t* const row = own + static_cast<unsigned>(out.rows[i][r]) * static_cast<unsigned>(K);
        set<R>(a[0][0], r, static_cast<short>(row[0]));
        set<R>(a[0][1], r, static_cast<short>(row[16]));
      }
    }
  }

 private:
  static constexpr bool kLong = kScaleK >= kStep;

  float factor_;
  uint32_t low_, high_;  // the lane's number, in the low and in the high half of a dword
  bool is_e2m1_;
};

}  // namespace aoext::xpu
