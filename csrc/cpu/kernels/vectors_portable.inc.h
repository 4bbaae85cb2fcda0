// Vectors of 16 bytes, which every CPU has, and what intrinsics do elsewhere in plain C++.
#pragma once

#include <stdint.h>

namespace aoext::cpu {
namespace {

constexpr int kFloats = 4, kRegisters = 16;
constexpr int64_t kKC = 256;  // floats of a packed block of w (gemm.inc.h)

}  // namespace
}  // namespace aoext::cpu

#include "cpu/kernels/scalars.inc.h"
#include "cpu/kernels/store_codes.inc.h"
#ifdef __x86_64__
#include <immintrin.h>

#include "cpu/kernels/x86.inc.h"
#endif

namespace aoext::cpu {
namespace {

constexpr bool kFused = false;

inline F32 multiply_add(F32 a, F32 b, F32 c) { return a * b + c; }

// A call, since loops over 8-bit weights are unrolled: inline, this would be a tenth of the library. Float8 is as f16_to_float.
template <Element kType>
AOEXT_NOINLINE F32 floats_of_bytes(const void* p) {
  uint32_t four;
  memcpy(&four, p, sizeof four);
  const Bytes bytes = (Bytes)(U32{} + four);
  const U32 words = (U32)__builtin_shufflevector(bytes, bytes, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  if constexpr (kType == Element::int8) return __builtin_convertvector((I32)words >> 24, F32);
  const U32 byte = words >> 24;
  const U32 sign = (byte & 0x80) << 24, magnitude = (byte & 0x7f) << (kType == Element::e5m2 ? 21 : 20);
  const U32 normal = magnitude + (112u << 23), subnormal = (U32)((F32)((magnitude >> 13) + (126u << 23)) - 0.5f);
  const U32 finite = magnitude >= (1u << 23) ? normal : subnormal;
  if constexpr (kType == Element::e5m2) return (F32)((magnitude >= (0x7c00u << 13) ? normal + (112u << 23) : finite) | sign);
  return (F32)(((byte & 0x7f) == 0x7f ? finite | 0x7fc00000u : finite) | sign) * 256.0f;
}

template <Element kType>
inline F32 floats_at(const void* p) {
  if constexpr (kType == Element::fp32) return load<F32>(p);
  if constexpr (kType == Element::bf16 || kType == Element::fp16) {
    float values[kFloats];
    row_to_float<uint16_t, kType == Element::bf16 ? bf16_to_float : f16_to_float>(p, values, kFloats);
    return load<F32>(values);
  }
  if constexpr (kType == Element::int8 || kType == Element::e4m3 || kType == Element::e5m2) return floats_of_bytes<kType>(p);
}

#ifdef __x86_64__
template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
  using Quad = typename Parts<T>::Quarter;
  Quad q[4];
  for (int i = 0; i < 4; ++i) q[i] = (Quad)v[i];
  add_quads(q, acc);
}
#else
template <class T, class V>
inline void add_sums(const V (&v)[4], T* acc) {
  for (int i = 0; i < 4; ++i) acc[i] += sum<T>(v[i]);
}
#endif

// The words of four vectors, transposed.
inline void transpose_words(U32 (&rows)[kFloats]) {
  U32 columns[kFloats];
  for (int i = 0; i < kFloats; ++i)
    for (int j = 0; j < kFloats; ++j) columns[j][i] = rows[i][j];
  memcpy(rows, columns, sizeof columns);
}

struct Table {
  const float* values;
  explicit Table(const float* from) : values(from) {}
};

inline F32 look_up(const Table& table, U32 words) {
  F32 v;
  for (int i = 0; i < kFloats; ++i) v[i] = table.values[words[i] & 15];
  return v;
}

template <int kGroups>
inline F32 spread(const float* from) {
  F32 v;
  for (int i = 0; i < kFloats; ++i) v[i] = from[i * kGroups / kFloats];
  return v;
}

inline void unpack_nibbles(const uint8_t* packed, int8_t (&q)[32]) {
  for (int64_t i = 0; i < 16; ++i) {
    q[2 * i] = sign_extend(packed[i] & 15);
    q[2 * i + 1] = sign_extend(packed[i] >> 4);
  }
}

inline Bytes32 look_up_bytes(const signed char (&table)[16], Bytes32 codes) {
  Bytes32 v;
  for (int i = 0; i < 32; ++i) v[i] = static_cast<uint8_t>(table[codes[i] & 15]);
  return v;
}

}  // namespace
}  // namespace aoext::cpu
