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

inline bool has_avx512() { return &kernels() == &kernels_avx512(); }

inline bool has_amx() { return &kernels() == &kernels_amx(); }

// What multiplies operands of bfloat16.
inline const Tiles& tiles_of_bf16() { return kernels().bf16 != nullptr ? *kernels().bf16 : *kernels().f32; }

}  // namespace aoext::cpu
