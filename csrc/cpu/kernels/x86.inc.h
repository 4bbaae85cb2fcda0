// What all instruction sets of x86-64 do alike: adding up lanes.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

template <class T>
struct Parts;
template <>
struct Parts<float> {
  using Quarter = float AOEXT_VECTOR(16);
  using Half = float AOEXT_VECTOR(32);
};
template <>
struct Parts<int32_t> {
  using Quarter = int32_t AOEXT_VECTOR(16);
  using Half = int32_t AOEXT_VECTOR(32);
};

// acc[i] += the sum of the lanes of q[i].
template <class T, class Quad>
inline void add_quads(const Quad (&q)[4], T* acc) {
  const auto pair = [](Quad a, Quad b) {
    return (Quad)_mm_unpacklo_ps((__m128)a, (__m128)b) + (Quad)_mm_unpackhi_ps((__m128)a, (__m128)b);
  };
  const __m128 ab = (__m128)pair(q[0], q[1]), cd = (__m128)pair(q[2], q[3]);
  store(acc, load<Quad>(acc) + ((Quad)_mm_movelh_ps(ab, cd) + (Quad)_mm_movehl_ps(cd, ab)));
}

}  // namespace
}  // namespace aoext::cpu
