// Weight-only int4 for many rows by mma.sync, on every GPU from sm_80 on.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

// Output tile of a block, and over how many blocks K is split.
struct MmaConfig {
  int block_n, block_m, splits;

  bool operator==(const MmaConfig&) const = default;
};

template <>
struct KernelOf<MmaConfig> : KernelTraits<MmaConfig, Int4Linear> {
  static constexpr const char* kName = "int4_mma";
  static constexpr auto kFields = std::to_array<Field<MmaConfig>>(
      {{"block_n", &MmaConfig::block_n}, {"block_m", &MmaConfig::block_m}, {"splits", &MmaConfig::splits}});
  // K and group_size are multiples of 32, x and weight start at 16-byte boundaries, x is bf16 or fp16, and scales are
  // of its type or fp32.
  static bool takes(const Int4Linear& p);
  static Choice<MmaConfig> choose(const Int4Linear& p, const Device& device);
  static bool fits(const Int4Linear& p, const MmaConfig& c);
  static size_t workspace(const Int4Linear& p, const MmaConfig& c);
  static cudaError_t launch(const Int4Linear& p, const MmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const Int4Linear& p, const MmaConfig& c);
};

}  // namespace aoext::cuda
