// Products with weights in blocks of bytes by wgmma, for tens of rows.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// The blocks of a cluster, which share K.
struct PackedWgmmaConfig {
  int cluster;

  bool operator==(const PackedWgmmaConfig&) const = default;
};

namespace packed_mma {
struct Params;
}

namespace packed_wgmma {

constexpr int kThreads = 256, kBlocks = 2, kBlockM = 64;
constexpr int kChunk = 64, kXStages = 3, kXBytes = kBlockM * kChunk * 2;  // k of a stage of x, and its bytes

// The kernel of one code and type. Each file sm90a/packed_wgmma_*.cu has some.
using Kernel = void (*)(const packed_mma::Params);
template <class T>
Kernel kernel_of_integers(Code code);
template <class T>
Kernel kernel_of_blocks_of_32(Code code);
template <class T>
Kernel kernel_of_blocks_of_256(Code code);

}  // namespace packed_wgmma

template <>
struct KernelOf<PackedWgmmaConfig> : KernelTraits<PackedWgmmaConfig, PackedLinear> {
  static constexpr const char* kName = "packed_wgmma";
  static constexpr auto kFields = std::to_array<Field<PackedWgmmaConfig>>({{"cluster", &PackedWgmmaConfig::cluster}});
  static constexpr Features kNeeds{.wgmma = true};
  // What packed_tiles takes, for one weight.
  static bool takes(const PackedLinear& p);
  static Choice<PackedWgmmaConfig> choose(const PackedLinear& p, const Device& device);
  static bool fits(const PackedLinear& p, const PackedWgmmaConfig& c, const Device& device);
  static cudaError_t launch(const PackedLinear& p, const PackedWgmmaConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const PackedLinear& p, const PackedWgmmaConfig& c);
};

}  // namespace aoext::cuda
