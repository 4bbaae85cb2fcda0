// Which gemm multiplies int4 weights and inputs of bfloat16.
#pragma once

#include "cpu/isa.h"

namespace aoext::cpu {

// With fewer output channels int4 weights that are rounded to bfloat16, zero point included, may show in a row of y.
constexpr int64_t kRoundedChannels = 64;

// Integers come in words of eight.
constexpr int64_t kEightCodes = 8;

// Whether one of bfloat16 operands does; otherwise that of floats.
inline bool has_gemm_int4_bf16(int64_t N, int64_t group_size) {
  const SharedKernels& k = shared_kernels();
  if (k.gemm_int4_codes != nullptr) return group_size % kEightCodes == 0;
  return k.gemm_int4_bf16 != nullptr && N >= kRoundedChannels;
}

// f(gemm) with it.
template <class F>
void with_gemm_int4_bf16(int64_t N, int64_t group_size, const F& f) {
  const SharedKernels& k = shared_kernels();
  if (!has_gemm_int4_bf16(N, group_size)) return f(*k.gemm_int4_f32);
  if (k.gemm_int4_codes != nullptr) return f(*k.gemm_int4_codes);
  f(*k.gemm_int4_bf16);
}

}  // namespace aoext::cpu
