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

// Whether it multiplies bytes four at a time; of a CPU that is not x86 taken for granted.
bool has_vnni();

}  // namespace aoext::cpu
