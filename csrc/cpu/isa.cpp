#include "cpu/isa.h"

#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

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

bool has_avx_vnni_features() { return has_avx2_features() && __builtin_cpu_supports("avxvnni"); }

bool has_avx512_features() {
  return has_avx2_features() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

bool has_amx_features() {
  return has_avx512_features() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("amx-int8");
}

// Linux lets a process use AMX's registers once it has asked.
bool may_use_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return has_amx_features() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#ifdef __aarch64__
// What the system says of this CPU: bits of Linux's AT_HWCAP and AT_HWCAP2, or a name of macOS's.
bool has([[maybe_unused]] unsigned long hwcap, [[maybe_unused]] unsigned long hwcap2, [[maybe_unused]] const char* name) {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & hwcap) == hwcap && (getauxval(AT_HWCAP2) & hwcap2) == hwcap2;
#elif defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
#else
  return false;
#endif
}

bool has_dotprod() { return has(/*HWCAP_ASIMDDP*/ 1ul << 20, 0, "hw.optional.arm.FEAT_DotProd"); }

bool has_i8mm() {
  return has_dotprod() && has(0, /*HWCAP2_I8MM*/ 1ul << 13, "hw.optional.arm.FEAT_I8MM") &&
         has(0, /*HWCAP2_BF16*/ 1ul << 14, "hw.optional.arm.FEAT_BF16");
}
#endif

// Best first.
const InstructionSet kInstructionSets[] = {
#ifdef __x86_64__
    {kernels_amx, may_use_amx},
    {kernels_avx512, has_avx512_features},
    {kernels_avxvnni, has_avx_vnni_features},
    {kernels_avx2, has_avx2_features},
#endif
#ifdef __aarch64__
    {kernels_i8mm, has_i8mm},
    {kernels_dotprod, has_dotprod},
    {kernels_neon, [] { return true; }},
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

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace aoext::cpu
