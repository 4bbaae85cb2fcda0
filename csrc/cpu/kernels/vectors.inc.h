// Vectors of whatever width an instruction set has: the vector extensions of GCC and Clang where a loop needs a shape, plain
// loops where the compiler finds it.
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "cpu/kernels/kernels.h"

namespace aoext::cpu {
namespace {

constexpr int kFloats = AOEXT_FLOATS;
using F32 = float __attribute__((vector_size(4 * kFloats)));
using U32 = uint32_t __attribute__((vector_size(4 * kFloats)));
using I32 = int32_t __attribute__((vector_size(4 * kFloats)));

template <class V>
inline V load(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

#ifdef AOEXT_AVX512
// By one instruction. A compiler repeats a load in each instruction that can have one as its operand, and each of these is
// another stream to the hardware that fetches ahead: reads from memory then take up to twice as long.
template <class V>
inline V load_once(const void* p) {
  V v = load<V>(p);
  asm("" : "+v"(v));
  return v;
}
#endif

template <class V>
inline void store(void* p, V v) {
  memcpy(p, &v, sizeof v);
}

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

#ifdef AOEXT_AVX512
inline F32 multiply_add(F32 a, F32 b, F32 c) { return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(AOEXT_AVX2)
inline F32 multiply_add(F32 a, F32 b, F32 c) { return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#endif

// The sum of a vector's lanes, pairwise.
template <class T, class V>
inline T sum(V v) {
  T lanes[sizeof(V) / sizeof(T)];
  memcpy(lanes, &v, sizeof v);
  for (int n = sizeof(V) / sizeof(T) / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  return lanes[0];
}

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
constexpr int kFewRows = kFloats >= 16 ? 4 : 2;

}  // namespace
}  // namespace aoext::cpu
