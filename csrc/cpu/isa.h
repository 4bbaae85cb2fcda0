// The instruction set that runs, chosen once per process, and its kernels.
#pragma once

#include <string>

#include "cpu/kernels/kernels.h"

namespace aoext::cpu {

enum class Isa { amx, avx512, avxvnni, avx2, i8mm, dotprod, neon, portable };

// AOEXT_CPU_ISA, or the best that this machine has. Raises RuntimeError for a name that is unknown or that the machine cannot
// run.
Isa isa();
const char* isa_name();

// Its kernels, in the two tables of kernels.h.
const Kernels& kernels();
const SharedKernels& shared_kernels();

// The names that AOEXT_CPU_ISA may take on this machine, best first, with commas between.
std::string usable_instruction_sets();

// Whether it multiplies bytes four at a time; of a CPU that is not x86 taken for granted.
bool has_vnni();

}  // namespace aoext::cpu
