// Products with weights in blocks of bytes by mma.sync, for few rows, on every GPU from sm_80 on.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// Output tile of a block, of limbs of x, and how many of its warps share K.
struct PackedMmaConfig {
  int block_n, block_m, k_warps;

  bool operator==(const PackedMmaConfig&) const = default;
};

namespace packed_mma {

constexpr int kMostThreads = 256;

struct Params;

// The kernels of one code and type, of 8 rows and of 16; for experts of 8. Each file packed_mma_*.cu has some.
using Kernel = void (*)(const Params);
struct Kernels {
  Kernel of_8, of_16, of_experts;
};
template <class T>
Kernels kernels_of_integers(Code code);
template <class T>
Kernels kernels_of_blocks_of_32(Code code);
template <class T>
Kernels kernels_of_blocks_of_256(Code code);

}  // namespace packed_mma

template <>
struct KernelOf<PackedMmaConfig> : KernelTraits<PackedMmaConfig, PackedLinear> {
  static constexpr const char* kName = "packed_mma";
  static constexpr auto kFields = std::to_array<Field<PackedMmaConfig>>(
      {{"block_n", &PackedMmaConfig::block_n}, {"block_m", &PackedMmaConfig::block_m}, {"k_warps", &PackedMmaConfig::k_warps}});
  // x of bf16 or fp16, or limbs of bf16; K is a multiple of 32, and groups beside codes are of a multiple of 16, in rows of
  // whole 16 bytes; M, N and K are 2^30 at most; x, weight, scales and zeros start at 16-byte boundaries.
  static bool takes(const PackedLinear& p);
  static Choice<PackedMmaConfig> choose(const PackedLinear& p, const Device& device);
  static bool fits(const PackedLinear& p, const PackedMmaConfig& c, const Device& device);
  static cudaError_t launch(const PackedLinear& p, const PackedMmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const PackedLinear& p, const PackedMmaConfig& c);
};

}  // namespace aoext::cuda
