#include "cpu/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/portability.h"

namespace aoext::cpu {
namespace {

struct InstructionSet {
  Isa isa;
  const Kernels& (*kernels)();
  bool (*runs_here)();
};

#ifdef __x86_64__
// A flag of the processor: a bit of register a, b, c or d after cpuid(leaf, subleaf).
struct Flag {
  unsigned leaf, subleaf;
  char in;
  int bit;
};

bool has(Flag flag) {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(flag.leaf, flag.subleaf, &a, &b, &c, &d)) return false;
  const unsigned value = flag.in == 'a' ? a : flag.in == 'b' ? b : flag.in == 'c' ? c : d;
  return value >> flag.bit & 1;
}

template <size_t kCount>
bool has(const Flag (&flags)[kCount]) {
  for (const Flag& flag : flags)
    if (!has(flag)) return false;
  return true;
}

// Whether the system saves these registers of a process: bits of XCR0.
bool saves(unsigned registers) {
  constexpr Flag kOsxsave{1, 0, 'c', 27};
  if (!has(kOsxsave)) return false;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & registers) == registers;
}

constexpr unsigned kSse = 1u << 1, kAvx = 1u << 2, kAvx512 = 7u << 5, kTiles = 3u << 17;

bool has_avx2_features() {
  constexpr Flag kFlags[] = {{1, 0, 'c', 28}, {7, 0, 'b', 5}, {1, 0, 'c', 12}, {1, 0, 'c', 29}};  // AVX, AVX2, FMA, F16C
  return saves(kSse | kAvx) && has(kFlags);
}

constexpr Flag kAvxVnni{7, 1, 'a', 4}, kAvx512Vnni{7, 0, 'c', 11};

bool has_avx_vnni_features() { return has_avx2_features() && has(kAvxVnni); }

bool has_avx512_features() {
  constexpr Flag kFlags[] = {
      {7, 0, 'b', 16}, {7, 0, 'b', 17}, {7, 0, 'b', 30}, {7, 0, 'b', 31},  // F, DQ, BW, VL
      kAvx512Vnni,     {7, 1, 'a', 5},  {7, 0, 'c', 1},                    // VNNI, BF16, VBMI
  };
  return has_avx2_features() && saves(kAvx512) && has(kFlags);
}

bool has_amx_features() {
  constexpr Flag kFlags[] = {{7, 0, 'd', 24}, {7, 0, 'd', 22}, {7, 0, 'd', 25}};  // TILE, BF16, INT8
  return has_avx512_features() && saves(kTiles) && has(kFlags) && may_use_amx_registers();
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
    {Isa::amx, kernels_amx, has_amx_features},
    {Isa::avx512, kernels_avx512, has_avx512_features},
    {Isa::avxvnni, kernels_avxvnni, has_avx_vnni_features},
    {Isa::avx2, kernels_avx2, has_avx2_features},
#endif
#ifdef __aarch64__
    {Isa::i8mm, kernels_i8mm, has_i8mm},
    {Isa::dotprod, kernels_dotprod, has_dotprod},
    {Isa::neon, kernels_neon, [] { return true; }},
#endif
    {Isa::portable, kernels_portable, [] { return true; }},
};

const InstructionSet& choose() {
  const char* wanted = std::getenv("AOEXT_CPU_ISA");
  for (const InstructionSet& set : kInstructionSets) {
    if (!set.runs_here()) continue;
    if (wanted == nullptr || *wanted == '\0' || std::string(wanted) == name_of(set.isa)) return set;
  }
  throw std::runtime_error("aoext: AOEXT_CPU_ISA must be one that this machine runs (" + usable_instruction_sets() + "), got " +
                           wanted);
}

const InstructionSet& chosen() {
  static const InstructionSet& set = choose();
  return set;
}

// The instruction set's table, which plans take to have what kernels.inc says.
const Kernels& checked_kernels() {
  const Kernels& table = chosen().kernels();
#ifndef AOEXT_INT4PACK_ALONE  // whose tables have fewer
#define AOEXT_KERNEL(type, name, instruction_sets)                \
  if ((table.name != nullptr) != has(chosen().isa, Kernel::name)) \
    throw std::logic_error(std::string("aoext: kernels.inc and the table of ") + name_of(chosen().isa) + " differ by " #name);
#include "cpu/kernels/kernels.inc"
#endif
  return table;
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::amx: return "amx";
    case Isa::avx512: return "avx512";
    case Isa::avxvnni: return "avxvnni";
    case Isa::avx2: return "avx2";
    case Isa::i8mm: return "i8mm";
    case Isa::dotprod: return "dotprod";
    case Isa::neon: return "neon";
    case Isa::portable: break;
  }
  return "portable";
}

std::string usable_instruction_sets() {
  std::string names;
  for (const InstructionSet& set : kInstructionSets)
    if (set.runs_here()) names += (names.empty() ? "" : ", ") + std::string(name_of(set.isa));
  return names;
}

bool has_vnni() {
#ifdef __x86_64__
  return (has_avx512_features() && has(kAvx512Vnni)) || has_avx_vnni_features();
#else
  return true;
#endif
}

Isa isa() { return chosen().isa; }

const Kernels& kernels() {
  static const Kernels& table = checked_kernels();
  return table;
}

const char* name_of(Kernel kernel) {
  constexpr const char* kNames[] = {
#define AOEXT_KERNEL(type, name, instruction_sets) #name,
#include "cpu/kernels/kernels.inc"
  };
  return kNames[static_cast<int>(kernel)];
}

bool has(Isa isa, Kernel kernel) {
  constexpr auto bit = [](Isa of) { return 1u << static_cast<int>(of); };
  constexpr unsigned kAmx = bit(Isa::amx), kAvx512 = bit(Isa::avx512), kAvxVnni = bit(Isa::avxvnni), kAvx2 = bit(Isa::avx2),
                     kI8mm = bit(Isa::i8mm), kDotprod = bit(Isa::dotprod), kPortable = bit(Isa::portable), kAll = ~0u;
  constexpr unsigned kSets[] = {
#define AOEXT_KERNEL(type, name, instruction_sets) instruction_sets,
#include "cpu/kernels/kernels.inc"
  };
  return (kSets[static_cast<int>(kernel)] & bit(isa)) != 0;
}

}  // namespace aoext::cpu
