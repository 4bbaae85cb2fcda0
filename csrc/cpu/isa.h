// Instruction sets: which one runs, chosen once per process, and its kernels.
#pragma once

#include <string>

#include "cpu/kernels/kernels.h"

namespace aoext::cpu {

// Best first, on x86 and on Arm; the library has those of the architecture that it was compiled for, and plans of all.
enum class Isa { amx, avx512, avxvnni, avx2, i8mm, dotprod, neon, portable };
constexpr Isa kIsas[] = {Isa::amx, Isa::avx512, Isa::avxvnni, Isa::avx2, Isa::i8mm, Isa::dotprod, Isa::neon, Isa::portable};
const char* name_of(Isa isa);

// AOEXT_CPU_ISA, or the best that this machine has. Raises RuntimeError for a name that is unknown or that the machine cannot
// run.
Isa isa();
const Kernels& kernels();

// The names that AOEXT_CPU_ISA may take on this machine, best first, with commas between.
std::string usable_instruction_sets();

// Whether it multiplies bytes four at a time; of a CPU that is not x86 taken for granted.
bool has_vnni();

// ---- kernels by name -----------------------------------------------------------------------------------

enum class Kernel {
#define AOEXT_KERNEL(type, name, instruction_sets) name,
#include "cpu/kernels/kernels.inc"
};
const char* name_of(Kernel kernel);
constexpr int kKernels = 0
#define AOEXT_KERNEL(type, name, instruction_sets) +1
#include "cpu/kernels/kernels.inc"
    ;

// Whether the instruction set has it, by its row of kernels.inc.
bool has(Isa isa, Kernel kernel);

// f(kernel) with the table's entry, a struct of kernels.h.
template <class F>
void with_kernel(Kernel kernel, const F& f) {
  switch (kernel) {
#define AOEXT_KERNEL(type, name, instruction_sets) \
  case Kernel::name: return f(*kernels().name);
#include "cpu/kernels/kernels.inc"
  }
}

}  // namespace aoext::cpu
