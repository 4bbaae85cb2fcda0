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

// Whether ATen's matrix products may use AMX where ours use AVX-512.
bool beside_amx();

// What multiplies operands of bfloat16 the faster: CPUs with AMX take longer for AVX-512's products of bfloat16 than for
// float32's.
const Tiles& tiles_of_bf16();

}  // namespace aoext::cpu
