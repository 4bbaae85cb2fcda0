// The instruction set that runs, chosen once per process.
#pragma once

#include <string>

#include "cpu/kernels/kernels.h"

namespace aoext::cpu {

// The kernels of AOEXT_CPU_ISA, or of the best instruction set that this machine has. Raises RuntimeError
// for a name that is unknown or that the machine cannot run.
const Kernels& kernels();

// The names that AOEXT_CPU_ISA may take on this machine, best first, with commas between.
std::string usable_instruction_sets();

// With fewer output columns int4 weights that are rounded to bfloat16, zero point included, may show in a row of y.
constexpr int64_t kRoundedColumns = 64;

// What multiplies int4 weights, of N rows, and inputs of bfloat16. Integers come in words of eight.
inline const Tiles& tiles_of_int4(int64_t N, int64_t group_size) {
  constexpr int64_t kEight = 8;
  const Tiles* const tiles = kernels().bf16_int4;
  const bool right = tiles != nullptr && (tiles->multiply_int4 != nullptr ? group_size % kEight == 0 : N >= kRoundedColumns);
  return right ? *tiles : *kernels().f32;
}

}  // namespace aoext::cpu
