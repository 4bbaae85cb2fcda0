// Products of bytes in 32 bits by the instruction for unsigned by signed ones, for gemv_planes.inc.h: dot_bytes, in
// vectors_avx512.inc.h and limb_sums_avxvnni.inc.h. Signed codes are 128 more, which meets x alone.
#pragma once

#include "cpu/kernels/gemv_planes.inc.h"

namespace aoext::cpu {
namespace {

template <bool kSigned>
inline I32 add_products(I32 sums, U32 codes, U32 x) {
  constexpr uint32_t kTop = 0x80808080u;
  if constexpr (!kSigned) return dot_bytes(sums, codes, x);
  return dot_bytes(sums, codes ^ kTop, x) - dot_bytes(I32{}, U32{} + kTop, x);
}

}  // namespace
}  // namespace aoext::cpu
