// Codes to bytes where the compiler narrows vectors well.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

template <bool kSigned>
inline void store_codes(const U32 (&codes)[4], const F32 (&x)[4], char* out) {
  constexpr uint32_t kCode = kSigned ? 0x7f : 0xff;
  for (int i = 0; i < 4; ++i) {
    using Bytes = uint8_t AOEXT_VECTOR(kFloats);
    const U32 code = codes[i] & kCode;
    store(out + i * kFloats, __builtin_convertvector(kSigned ? code | ((U32)x[i] & kSign) >> 24 : code, Bytes));
  }
}

}  // namespace
}  // namespace aoext::cpu
