#include "cpu/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace aoext::cpu {
namespace {

struct InstructionSet {
  const Kernels& (*kernels)();
  bool (*runs_here)();
};

#ifdef __x86_64__
bool has_avx2_features() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512_features() {
  return has_avx2_features() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16");
}
#endif

// Best first.
const InstructionSet kInstructionSets[] = {
#ifdef __x86_64__
    {kernels_avx512, has_avx512_features},
    {kernels_avx2, has_avx2_features},
#endif
    {kernels_portable, [] { return true; }},
};

const Kernels& choose() {
  const char* wanted = std::getenv("AOEXT_CPU_ISA");
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.runs_here()) continue;
    if (wanted == nullptr || *wanted == '\0' || std::string(wanted) == set.kernels().name) return set.kernels();
  }
  throw std::runtime_error("aoext: AOEXT_CPU_ISA must be one that this machine runs (" + usable_instruction_sets() + "), got " +
                           wanted);
}

}  // namespace

std::string usable_instruction_sets() {
  std::string names;
  for (const InstructionSet& set : kInstructionSets)
    if (set.runs_here()) names += (names.empty() ? "" : ", ") + std::string(set.kernels().name);
  return names;
}

bool has_amx() {
#ifdef __x86_64__
  return has_avx512() && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8");
#else
  return false;
#endif
}

const Tiles& tiles_of_bf16() { return kernels().bf16 != nullptr && !has_amx() ? *kernels().bf16 : *kernels().f32; }

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace aoext::cpu
