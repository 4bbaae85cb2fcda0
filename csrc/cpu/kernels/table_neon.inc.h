// What NEON's instruction sets share; products of bytes and of bfloat16 are their own.
#pragma once

#include "cpu/kernels/vectors_neon.inc.h"

#include "cpu/kernels/table.inc.h"

#include "cpu/kernels/gemm_i8_portable.inc.h"
#include "cpu/kernels/without_avx512.inc.h"

namespace aoext::cpu {
namespace {

constexpr Kernels table_neon(const char* name) {
  constexpr int64_t kKC = 256;  // floats
  return table_of_all<kKC>(name, &kGemmI8<kKC>);
}

}  // namespace
}  // namespace aoext::cpu
