// Products of one row with weights in blocks of bytes by mma.sync, on every GPU from sm_80 on.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// Output channels of a block, and how many of its warps share K.
struct PackedDecodeConfig {
  int block_n, k_warps;

  bool operator==(const PackedDecodeConfig&) const = default;
};

namespace packed_mma {
struct Params;
}

namespace packed_decode {

constexpr int kMostThreads = 256;  // of a block

// The kernel of one code and type. Each file packed_decode_*.cu has some.
using Kernel = void (*)(const packed_mma::Params);
template <class T>
Kernel kernel_of_integers(Code code);
template <class T>
Kernel kernel_of_blocks_of_32(Code code);
template <class T>
Kernel kernel_of_blocks_of_256(Code code);

}  // namespace packed_decode

template <>
struct KernelOf<PackedDecodeConfig> : KernelTraits<PackedDecodeConfig, PackedLinear> {
  static constexpr const char* kName = "packed_decode";
  static constexpr auto kFields = std::to_array<Field<PackedDecodeConfig>>(
      {{"block_n", &PackedDecodeConfig::block_n}, {"k_warps", &PackedDecodeConfig::k_warps}});
  // What packed_mma takes, of one row that is no limbs, for one weight.
  static bool takes(const PackedLinear& p);
  static Choice<PackedDecodeConfig> choose(const PackedLinear& p, const Device& device);
  static bool fits(const PackedLinear& p, const PackedDecodeConfig& c, const Device& device);
  static cudaError_t launch(const PackedLinear& p, const PackedDecodeConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const PackedLinear& p, const PackedDecodeConfig& c);
};

}  // namespace aoext::cuda
