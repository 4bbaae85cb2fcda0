// Vectors of 16 bytes, of which there are 32: NEON, as every CPU of aarch64 has it.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace aoext::cpu {
namespace {

constexpr int kFloats = 4, kRegisters = 32;
constexpr int64_t kKC = 256;  // floats of a packed block of w (gemm.inc.h)

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/scalars.inc.h"
#include "cpu/kernels/weights_8bit.inc.h"

namespace aoext::cpu {
namespace {

constexpr bool kFused = true;

inline F32 multiply_add(F32 a, F32 b, F32 c) { return (F32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }

// Eight halves as floats.
inline void widen(uint16x8_t halves, F32 (&out)[2]) {
  const float16x8_t of = vreinterpretq_f16_u16(halves);
  out[0] = (F32)vcvt_f32_f16(vget_low_f16(of));
  out[1] = (F32)vcvt_high_f32_f16(of);
}

// Eight values of one byte as floats; e4m3's are to be multiplied by 256, and its NaN becomes a number.
template <Element kType>
inline void widen_bytes(uint8x8_t bytes, F32 (&out)[2]) {
  if constexpr (kType == Element::int8) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(bytes));
    out[0] = (F32)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    out[1] = (F32)vcvtq_f32_s32(vmovl_high_s16(wide));
  } else if constexpr (kType == Element::e5m2) {
    widen(vshll_n_u8(bytes, 8), out);
  } else {
    static_assert(kType == Element::e4m3);
    // A half by its bits: a second copy of the sign comes before the exponent and is cleared.
    const int16x8_t wide = vshll_n_s8(vreinterpret_s8_u8(bytes), 7);
    widen(vandq_u16(vreinterpretq_u16_s16(wide), vdupq_n_u16(0xbfff)), out);
  }
}

template <Element kType>
inline F32 floats_at(const void* p) {
  if constexpr (kType == Element::fp32) {
    return load<F32>(p);
  } else if constexpr (kType == Element::bf16) {
    return (F32)vshll_n_u16(load<uint16x4_t>(p), 16);
  } else if constexpr (kType == Element::fp16) {
    return (F32)vcvt_f32_f16(load<float16x4_t>(p));
  } else {
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    F32 values[2];
    widen_bytes<kType>(vreinterpret_u8_u32(vdup_n_u32(bytes)), values);
    return values[0];
  }
}

template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
  if constexpr (sizeof(T) == sizeof(float) && T(0.5f) != T(0)) {
    const auto of = [&](int i) { return (float32x4_t)v[i]; };
    const float32x4_t sums = vpaddq_f32(vpaddq_f32(of(0), of(1)), vpaddq_f32(of(2), of(3)));
    store(acc, vaddq_f32(load<float32x4_t>(acc), sums));
  } else {
    const auto of = [&](int i) { return (int32x4_t)v[i]; };
    const int32x4_t sums = vpaddq_s32(vpaddq_s32(of(0), of(1)), vpaddq_s32(of(2), of(3)));
    store(acc, vaddq_s32(load<int32x4_t>(acc), sums));
  }
}

// The words of four vectors, transposed.
inline void transpose_words(U32 (&rows)[kFloats]) {
  const auto row = [&](int i) { return (uint32x4_t)rows[i]; };
  const auto doubles = [](uint32x4_t v) { return vreinterpretq_u64_u32(v); };
  const uint32x4_t even[] = {vtrn1q_u32(row(0), row(1)), vtrn1q_u32(row(2), row(3))};
  const uint32x4_t odd[] = {vtrn2q_u32(row(0), row(1)), vtrn2q_u32(row(2), row(3))};
  rows[0] = (U32)vtrn1q_u64(doubles(even[0]), doubles(even[1]));
  rows[1] = (U32)vtrn1q_u64(doubles(odd[0]), doubles(odd[1]));
  rows[2] = (U32)vtrn2q_u64(doubles(even[0]), doubles(even[1]));
  rows[3] = (U32)vtrn2q_u64(doubles(odd[0]), doubles(odd[1]));
}

template <bool kSigned>
inline void store_codes(const U32 (&codes)[4], const F32 (&x)[4], char* out) {
  const auto code = [&](int i) { return (uint16x8_t)codes[i]; };
  uint8x16_t bytes = vuzp1q_u8((uint8x16_t)vuzp1q_u16(code(0), code(1)), (uint8x16_t)vuzp1q_u16(code(2), code(3)));
  if constexpr (kSigned) {
    const auto from = [&](int i) { return (uint16x8_t)x[i]; };  // whose highest bytes have the sign
    const uint8x16_t signs = vuzp2q_u8((uint8x16_t)vuzp2q_u16(from(0), from(1)), (uint8x16_t)vuzp2q_u16(from(2), from(3)));
    bytes = vbslq_u8(vdupq_n_u8(0x80), signs, bytes);
  }
  store(out, bytes);
}

// A table as 64 bytes in four registers.
struct Table {
  uint8x16x4_t bytes;
  explicit Table(const float* from) {
    for (int i = 0; i < 4; ++i) bytes.val[i] = load<uint8x16_t>(from + i * kFloats);
  }
};

// Each byte of a lane looks up its own.
inline F32 look_up(const Table& table, U32 words) {
  const U32 index = (words & 15) * 0x04040404u + 0x03020100u;
  return (F32)vqtbl4q_u8(table.bytes, (uint8x16_t)index);
}

template <int kGroups>
inline F32 spread(const float* from) {
  static_assert(kGroups == 2);
  const float32x2_t groups = load<float32x2_t>(from);
  return (F32)vzip1q_f32(vcombine_f32(groups, groups), vcombine_f32(groups, groups));
}

inline void unpack_nibbles(const uint8_t* packed, int8_t (&q)[32]) {
  const int8x16_t bytes = load<int8x16_t>(packed);
  const int8x16_t even = vshrq_n_s8(vshlq_n_s8(bytes, 4), 4), odd = vshrq_n_s8(bytes, 4);
  store(q, vzip1q_s8(even, odd));
  store(q + 16, vzip2q_s8(even, odd));
}

// ---- 8-bit weights: eight at a time --------------------------------------------------------------------

constexpr int kExactE4m3 = 2;

inline void load_e4m3(const void* p, F32 (&out)[2]) { widen_bytes<Element::e4m3>(load<uint8x8_t>(p), out); }

// As widen_bytes, with NaN kept.
template <Element kType>
inline void widen_exact(uint8x8_t bytes, F32 (&out)[2]) {
  if constexpr (kType != Element::e4m3) return widen_bytes<kType>(bytes, out);
  const uint8x8_t nan = vceq_u8(vand_u8(bytes, vdup_n_u8(0x7f)), vdup_n_u8(0x7f));
  const uint16x8_t halves = vandq_u16(vreinterpretq_u16_s16(vshll_n_s8(vreinterpret_s8_u8(bytes), 7)), vdupq_n_u16(0xbfff));
  widen(vorrq_u16(halves, vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(nan)))), out);
}

inline void load_e4m3_and_nan(const void* p, F32 (&out)[2]) { widen_exact<Element::e4m3>(load<uint8x8_t>(p), out); }

inline Bytes largest_bytes(Bytes a, Bytes b) { return (Bytes)vmaxq_u8((uint8x16_t)a, (uint8x16_t)b); }

inline bool any_byte_is(Bytes bytes, uint8_t byte) { return vmaxvq_u8(vceqq_u8((uint8x16_t)bytes, vdupq_n_u8(byte))) != 0; }

template <Element kType>
struct EightBytes {
  static constexpr int kVectors = 2;
  static constexpr float kFactor = 1;
  using Nan = SeenNan<kType>;
  static void load(const void* p, F32 (&out)[kVectors]) { widen_bytes<kType>(aoext::cpu::load<uint8x8_t>(p), out); }
};

template <>
struct Weights8Bit<Element::int8> : EightBytes<Element::int8> {};
template <>
struct Weights8Bit<Element::e5m2> : EightBytes<Element::e5m2> {};
template <>
struct Exact<Element::int8> : EightBytes<Element::int8> {};
template <>
struct Exact<Element::e5m2> : EightBytes<Element::e5m2> {};

inline Bytes32 look_up_bytes(const signed char (&table)[16], Bytes32 codes) {
  const uint8x16_t values = load<uint8x16_t>(table);
  uint8x16_t halves[2];
  memcpy(halves, &codes, sizeof codes);
  for (uint8x16_t& half : halves) half = vqtbl1q_u8(values, half);
  return load<Bytes32>(halves);
}

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/e4m3.inc.h"
