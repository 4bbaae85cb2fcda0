// Vectors of whatever width an instruction set has: the vector extensions of GCC and Clang where a loop needs a shape, plain
// loops where the compiler finds it. vectors_<instruction set>.inc.h, which a translation unit includes first, says how wide they
// are (kFloats) and how many a program has (kRegisters), and defines what is declared at the end.
#pragma once

#include <string.h>
#include "cpu/kernels/kernels.h"

namespace aoext::cpu {
namespace {

using F32 = float AOEXT_VECTOR(4 * kFloats);
using U32 = uint32_t AOEXT_VECTOR(4 * kFloats);
using I32 = int32_t AOEXT_VECTOR(4 * kFloats);
using Bytes = uint8_t AOEXT_VECTOR(4 * kFloats);
using Bytes32 = uint8_t AOEXT_VECTOR(32);

constexpr int kPanelVectors = kPanel / kFloats;

template <class V>
inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
inline void store(void* p, V v) {
  memcpy(p, &v, sizeof v);
}

// The weights that a loop meets next, a line of them, into the second cache. Few lines can be on their way into the first, and
// on Zen 4 that was what products by few rows waited for.
inline void fetch_weights(const void* p) { __builtin_prefetch(p, 0, 2); }

// Into the first, where a line takes longer to convert than to read.
inline void fetch_weights_to_convert(const void* p) { __builtin_prefetch(p); }

inline F32 broadcast(float f) { return f - F32{}; }

inline uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

inline float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

constexpr uint32_t kSign = 0x80000000u, kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;

inline F32 magnitude(F32 v) { return (F32)((U32)v & kMagnitude); }

// The sum of a vector's lanes, pairwise.
template <class T, class V>
inline T sum(V v) {
  T lanes[sizeof(V) / sizeof(T)];
  memcpy(lanes, &v, sizeof v);
  for (int n = sizeof(V) / sizeof(T) / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  return lanes[0];
}

// Σ v, rounded once: what each addition loses is added up beside it (Knuth's two-sum). The x of a group may cancel where its zero
// point is many times its scale, and what is left is all of the result.
struct CompensatedSum {
  F32 sums = {}, lost = {};
  void add(F32 v) {
    const F32 next = sums + v, added = next - sums;
    lost += (sums - (next - added)) + (v - added);
    sums = next;
  }
  float total() const {
    double sum[kFloats], rest[kFloats];
    for (int i = 0; i < kFloats; ++i) sum[i] = sums[i], rest[i] = lost[i];
    for (int n = kFloats / 2; n > 0; n /= 2)
      for (int i = 0; i < n; ++i) sum[i] += sum[i + n], rest[i] += rest[i + n];
    return static_cast<float>(rest[0] - rest[0] == 0 ? sum[0] + rest[0] : sum[0]);  // an infinity loses NaN
  }
};

// M rows of x, at most kMost at once: body(Rows<count>, first). A single row is left over only where M = 1: its few sums would
// wait for each other.
template <int kCount>
struct Rows {
  static constexpr int count = kCount;
};

template <int kMost, class Body>
inline void each_rows(int64_t M, Body&& body) {
  int64_t m = 0;
  const auto take = [&](auto rows) {
    body(rows, m);
    m += decltype(rows)::count;
  };
  while (M - m > kMost + 1 || M - m == kMost) take(Rows<kMost>());
  if (M - m == kMost + 1) take(Rows<(kMost > 2 ? kMost - 1 : kMost)>());
  if constexpr (kMost > 3)
    if (M - m == 3) take(Rows<3>());
  if (M - m == 2) take(Rows<2>());
  if (M - m == 1) take(Rows<1>());
}

// Few rows of x that meet a weight's bytes themselves: what the registers hold beside these.
constexpr int kFewRows = kRegisters >= 32 ? 4 : 2;

// ---- what an instruction set defines -------------------------------------------------------------------

// a · b + c; rounded once where kFused.
F32 multiply_add(F32 a, F32 b, F32 c);

// kFloats values of a type, as floats.
template <Element kType>
F32 floats_at(const void* p);

// acc[i] += the sum of the lanes of v[i].
template <class T, class V>
void add_sums(const V (&v)[4], T* acc);

// 16 bytes of int4 in the order of k.
void unpack_nibbles(const uint8_t* packed, int8_t (&q)[32]);

// The words of kFloats vectors, transposed.
void transpose_words(U32 (&rows)[kFloats]);

// Nibble i of each word, as a float.
F32 nibble(U32 words, int i);

// A table of 16 values as look-ups take it, and what the low four bits of each word stand for in it.
struct Table;
F32 look_up(const Table& table, U32 words);

// What codes, one a byte, stand for in a table of 16 bytes.
Bytes32 look_up_bytes(const signed char (&table)[16], Bytes32 codes);

// kGroups floats, at most kFloats / 2, each in as many lanes, which follow one another.
template <int kGroups>
F32 spread(const float* from);

template <int kGroups>
inline I32 group_of_lane() {
  I32 index;
  for (int i = 0; i < kFloats; ++i) index[i] = i * kGroups / kFloats;
  return index;
}

// The low bytes of four vectors, where kSigned their low seven bits and the signs of x.
template <bool kSigned>
void store_codes(const U32 (&codes)[4], const F32 (&x)[4], char* out);

// n elements of a group of int4, a multiple of kNibbles, as bfloat16 of q · s + z.
void dequantize_group(const uint8_t* packed, int64_t n, float s, float z, uint16_t* out);

// 8-bit values as bfloat16: as many of n as there are instructions for, and how many that is.
template <Element kType>
int64_t values_to_bf16(const void* source, uint16_t* out, int64_t n);

}  // namespace
}  // namespace aoext::cpu
