// Blocks of bytes as numbers, by the layout of their code: one function for planes of whichever bits, at compile time.
//
// A unit is a block, or as many short ones as have 32 codes. Codes come four neighbours at a time, a byte each in a word. In a
// step of 16 k, lane t of a quad has the four from 4 t on, which is what an mma wants of it.
#pragma once

#include <utility>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/experts.cuh"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// The product of one of the experts, by its weight; what it has of x and y, and how many rows, stays as it is.
__device__ __forceinline__ PackedLinear of_expert(const PackedLinear& p, int64_t expert) {
  PackedLinear own = p;
  const bool beside = p.zero != nullptr;
  const int64_t scales = expert * (beside ? p.K / p.group_size * p.N : 1);
  own.weight = p.weight + expert * p.N * p.row_bytes;
  own.scale = behind(p.scale, scales, beside ? p.scale_type : Element::fp32), own.zero = behind(p.zero, scales, p.scale_type);
  own.bias = behind(p.bias, expert * p.N, p.bias_type);
  return own;
}

namespace packed {

// f(integral_constant) of 0 … kCount − 1.
template <int kCount, class F>
__device__ __forceinline__ void each_index(F&& f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (f(std::integral_constant<int, kIndex>()), ...);
  }(std::make_integer_sequence<int, kCount>());
}

template <Code kCode>
struct Unit {
  static constexpr Layout kLayout = layout_of(kCode);
  static constexpr bool kBeside = kLayout.group == 0;  // scales and zeros lie beside the codes
  static constexpr bool kHasZero = kBeside || kLayout.zero_point.at >= 0;
  static constexpr int kValues = kLayout.values < 32 ? 32 : kLayout.values;
  static constexpr int kBytes = kValues / kLayout.values * kLayout.bytes;
  static constexpr int kAlign = kBytes % 4 == 0 ? 4 : 2;  // bytes that every unit starts at a multiple of
  static constexpr int kGroup = kBeside ? 32 : kLayout.group, kGroups = kValues / kGroup;
  static constexpr int kBits = kLayout.code.bits();
  static_assert(kBytes % 2 == 0 && (kLayout.values == kValues || kLayout.bytes == 1));
};

// A word at an address that is a multiple of kAlign.
template <int kAlign>
__device__ __forceinline__ uint32_t read_word(const uint8_t* p) {
  if constexpr (kAlign == 4) return *reinterpret_cast<const uint32_t*>(p);
  const auto* const halves = reinterpret_cast<const uint16_t*>(p);
  return halves[0] | uint32_t{halves[1]} << 16;
}

// Neighbouring integers of kBits bits from the lowest of v on, a byte each, kUp bits further up.
template <int kBits, int kUp>
__device__ __forceinline__ uint32_t spread(uint32_t v) {
  if constexpr (kBits == 1) return v * (0x00204081u << kUp) & (0x01010101u << kUp);
  if constexpr (kBits == 2) return (v * 0x00001001u & 0x000f000fu) * (0x41u << kUp) & (0x03030303u << kUp);
  v = (v | v << 8) & 0x00ff00ffu;
  return ((v | v << 4) & 0x0f0f0f0fu) << kUp;
}

// Digits to base 3 of four bytes, a byte each.
__device__ __forceinline__ uint32_t digits_of(uint32_t v, int digit) {
  const auto power = static_cast<uint32_t>(Digits::power(digit));
  const auto of_pair = [&](uint32_t pair) { return (pair * power & 0x00ff00ffu) * 3 >> 8 & 0x00030003u; };
  return of_pair(v & 0x00ff00ffu) | of_pair(v >> 8 & 0x00ff00ffu) << 8;
}

// Where some integers of a plane lie from others on; of digits, how many they are on.
struct Place {
  int byte = 0, shift = 0;
};
// The same for an integer's planes.
struct Places {
  Place planes[3];
};

// Those bits of the four integers from kFirst + 4 t on, kUp bits further up; or of those so much further on.
template <Bits kBits, int kFirst, int kAlign, int kUp>
__device__ __forceinline__ uint32_t bits_of_four(const uint8_t* unit, int t, Place further = {}) {
  if constexpr (kBits.are_digits) {
    // 16 integers lie in as many bytes, or the last in four.
    const int first = kFirst + further.byte;
    const bool is_last = first == Digits::kSecondEnd;
    const uint8_t* const from = unit + kBits.byte_of(first) + (is_last ? 0 : 4 * t);
    return digits_of(read_word<2>(from), kBits.shift_of(first) + (is_last ? t : 0)) << kUp;
  }
  constexpr int kByte = kBits.byte_of(kFirst), kByte1 = kBits.byte_of(kFirst + 4) - kByte,
                kByte2 = kBits.byte_of(kFirst + 8) - kByte;
  constexpr int kShift = kBits.shift_of(kFirst), kShift1 = kBits.shift_of(kFirst + 4) - kShift,
                kShift2 = kBits.shift_of(kFirst + 8) - kShift;
  const uint8_t* const from = unit + further.byte + kByte + (t & 1) * kByte1 + (t >> 1) * kByte2;
  const int shift = further.shift + kShift + (t & 1) * kShift1 + (t >> 1) * kShift2;
  constexpr uint32_t kMask = ((1u << kBits.bits) - 1) * 0x01010101u;
  if constexpr (kBits.byte_of(kFirst + 1) == kByte + 1 && kBits.shift_of(kFirst + 1) == kShift) {
    constexpr int kWord = (kByte | kByte1 | kByte2) % 4 == 0 ? kAlign : 2;
    return (read_word<kWord>(from) >> shift & kMask) << kUp;
  } else if constexpr (kBits.bits == 4) {
    return spread<4, kUp>(*reinterpret_cast<const uint16_t*>(from));
  } else if constexpr (kBits.bits == 2) {
    return spread<2, kUp>(*from);
  } else {
    // The word of 32 of them serves both steps of 16.
    constexpr int kOf32 = kFirst % 32;
    const uint32_t word = read_word<kBits.at % 4 == 0 ? kAlign : 2>(unit + further.byte + kBits.byte_of(kFirst - kOf32));
    return spread<1, kUp>(word >> (kOf32 + 4 * t) & 15);
  }
}

// The four integers as they are stored, kUp bits further up.
template <Integer kInteger, int kFirst, int kAlign, int kUp = 0>
__device__ __forceinline__ uint32_t four_of(const uint8_t* unit, int t, const Places& further = {}) {
  constexpr int kLow = kUp + kInteger.planes[0].bits, kLow2 = kLow + kInteger.planes[1].bits;
  uint32_t v = bits_of_four<kInteger.planes[0], kFirst, kAlign, kUp>(unit, t, further.planes[0]);
  if constexpr (kInteger.planes[1].bits > 0)
    v |= bits_of_four<kInteger.planes[1], kFirst, kAlign, kLow>(unit, t, further.planes[1]);
  if constexpr (kInteger.planes[2].bits > 0)
    v |= bits_of_four<kInteger.planes[2], kFirst, kAlign, kLow2>(unit, t, further.planes[2]);
  return v;
}

// Whether four_of holds for so many integers: what it adds for t is linear in its bits, but of digits.
constexpr bool is_linear(const Integer& integer, int count) {
  for (const Bits& bits : integer.planes)
    for (int k = 0; k + 12 < count; k += 16)
      if (bits.bits > 0 && !bits.are_digits &&
          (bits.byte_of(k + 12) + bits.byte_of(k) != bits.byte_of(k + 4) + bits.byte_of(k + 8) ||
           bits.shift_of(k + 12) + bits.shift_of(k) != bits.shift_of(k + 4) + bits.shift_of(k + 8)))
        return false;
  return true;
}

// The entries of kIq4 that four indices stand for, as signed bytes.
__device__ __forceinline__ uint32_t look_up(uint32_t indices) {
  constexpr auto kWord = [](int i) {
    uint32_t word = 0;
    for (int j = 3; j >= 0; --j) word = word << 8 | static_cast<uint8_t>(kIq4[4 * i + j]);
    return word;
  };
  constexpr uint32_t k0 = kWord(0), k1 = kWord(1), k2 = kWord(2), k3 = kWord(3);
  const uint32_t low = indices & 0x07070707u, selector = __byte_perm(low | low >> 4, 0, 0x4420);
  const uint32_t upper = (indices >> 3 & 0x01010101u) * 0xffu;
  return (__byte_perm(k0, k1, selector) & ~upper) | (__byte_perm(k2, k3, selector) & upper);
}

// ---- Codes for the tensor cores ----

// Where there are zeros, codes go there above kBase, which only the zero of a group then knows; codes of few bits as multiples
// of 2^kUp, beside which kBase is not too large. Elsewhere they are what they stand for. Both are exact.
template <class T, Code kCode>
struct Operand {
  using U = Unit<kCode>;
  static constexpr int kBase = std::is_same_v<T, __half> ? 1024 : 128;
  static constexpr bool kEight = kCode == Code::int2;  // a lane has eight neighbours of 32, as one half word
  static constexpr int kUp = kEight ? 4 : U::kHasZero && U::kBits <= 3 ? 7 - U::kBits : 0;
  static constexpr uint32_t kUpper = std::is_same_v<T, __half> ? 0x64646464u : 0x43434343u;  // bytes of kBase
  static_assert(is_linear(U::kLayout.code, U::kValues));

  // Codes above a base, zeros or not, and which it is.
  static constexpr bool kHasBase = !U::kLayout.code.is_signed && !U::kLayout.looks_up;
  static constexpr int kWholeBase = kHasBase ? kBase + U::kLayout.code.middle : 0;

  // The lane's four codes in a step: the first two, then the others. kKeepsBase: above kWholeBase wherever they can be.
  template <int kFirst, bool kKeepsBase = false>
  static __device__ __forceinline__ uint2 pairs(const uint8_t* unit, int t) {
    constexpr Integer kCodes = U::kLayout.code;
    const uint32_t v = four_of<kCodes, kFirst, U::kAlign, kUp>(unit, t);
    if constexpr (kCodes.is_signed) return widened<T, Element::int8>(v);
    if constexpr (U::kLayout.looks_up) return widened<T, Element::int8>(look_up(v));
    const uint2 based{__byte_perm(v, kUpper, 0x4140), __byte_perm(v, kUpper, 0x4342)};
    if constexpr (U::kHasZero || kKeepsBase) return based;
    constexpr uint32_t kMiddle = ((kUpper & 0xff00u) + kCodes.middle) * 0x10001u;
    return {less(based.x, kMiddle), less(based.y, kMiddle)};
  }

  // The lane's eight codes of two bits in 32 k: those of one step, then those of the other.
  static __device__ __forceinline__ uint4 eight(const uint8_t* unit, int t) {
    static_assert(kEight && kUp == 4);
    const uint32_t v = *reinterpret_cast<const uint16_t*>(unit + 2 * t), pairs = v | v << 14;
    constexpr uint32_t kMask = 0x00300030u, kAbove = (kUpper & 0xff00u) * 0x10001u;
    return {and_xor<kMask, kAbove>(pairs << 4), and_xor<kMask, kAbove>(pairs), and_xor<kMask, kAbove>(pairs >> 4),
            and_xor<kMask, kAbove>(pairs >> 8)};
  }

  static __device__ __forceinline__ uint32_t less(uint32_t a, uint32_t b) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    return bits<uint32_t>(__hsub2(bits<Pair>(a), bits<Pair>(b)));
  }
};

// ---- Scales ----

struct Affine {
  float scale, zero;
};

__device__ __forceinline__ float read_half(const uint8_t* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }

// Integer j of a word of four as float32, exactly.
template <int kMiddle>
__device__ __forceinline__ float integer(uint32_t four, int j) {
  return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540 + j)) - (8388608.0f + kMiddle);
}

// Codes as float32, above kBase: a byte in the upper half of 128, or what signed bytes stand for, of which the sign is flipped.
template <Code kCode>
struct Number {
  static constexpr Integer kCodes = layout_of(kCode).code;
  static constexpr bool kSigned = layout_of(kCode).looks_up || kCodes.is_signed;
  static constexpr int kBase = kSigned ? 0 : 128 + kCodes.middle;
  static_assert(kSigned || kCodes.bits() < 8);

  static __device__ __forceinline__ float of(uint32_t four, int j) {
    return kSigned ? integer<128>(four, j) : __uint_as_float(__byte_perm(four, 0x43000000u, 0x7054 + (j << 8)));
  }
};

// A number of four groups from 4 t on of a unit that is a block, or of the one that there is.
template <GroupNumber kNumber, int kAlign>
__device__ __forceinline__ void numbers_of(const uint8_t* unit, int t, float (&v)[4]) {
  const float d = kNumber.is_taken_off ? -read_half(unit + kNumber.at) : read_half(unit + kNumber.at);
  if constexpr (kNumber.has_factor()) {
    uint32_t four = four_of<kNumber.factor, 0, kAlign>(unit, t);
    if constexpr (kNumber.factor.is_signed) four ^= kNumber.factor.middle * 0x01010101u;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // The first is exact, and one instruction.
      constexpr float kAbove = 8388608.0f;
      if constexpr (kNumber.factor.middle == 0)
        v[j] = fmaf(__uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540 + j)), d, -kAbove * d);
      else
        v[j] = integer<kNumber.factor.middle>(four, j) * d;
    }
  } else {
    v[0] = d;
  }
}

// Scales and zeros of four groups from 4 t on, or of the one that there is.
template <Code kCode>
__device__ __forceinline__ void affine_of(const uint8_t* unit, int t, Affine (&a)[4]) {
  using U = Unit<kCode>;
  float scales[4], zeros[4] = {};
  numbers_of<U::kLayout.scale, U::kAlign>(unit, t, scales);
  if constexpr (U::kHasZero) numbers_of<U::kLayout.zero_point, U::kAlign>(unit, t, zeros);
#pragma unroll
  for (int j = 0; j < (U::kGroups < 4 ? 1 : 4); ++j) a[j] = {scales[j], zeros[j]};
}

// What multiplies the whole weight, where its blocks hold their scales.
__device__ __forceinline__ bool has_scale_of_all(const PackedLinear& p) { return p.zero == nullptr; }

// Output i.
__device__ __forceinline__ void store(const PackedLinear& p, int64_t i, float v) {
  switch (p.output) {
    case Element::fp32: static_cast<float*>(p.y)[i] = v; break;
    case Element::fp16: static_cast<__half*>(p.y)[i] = __float2half_rn(v); break;
    default: static_cast<__nv_bfloat16*>(p.y)[i] = __float2bfloat16_rn(v);
  }
}

}  // namespace packed
}  // namespace aoext::cuda
