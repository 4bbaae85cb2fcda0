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

}  // namespace aoext::cpu
