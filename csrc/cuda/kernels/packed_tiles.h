// Products with weights in blocks of bytes by mma.sync, for tens of rows, on every GPU from sm_80 on.
#pragma once

#include "cuda/kernels/kernel.h"
#include "cuda/kernels/packed.h"

namespace aoext::cuda {

// The blocks of a cluster, which share K.
struct PackedTilesConfig {
  int cluster;

  bool operator==(const PackedTilesConfig&) const = default;
};

namespace packed_mma {
struct Params;
}

namespace packed_tiles {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kWarpN = 32, kBlockN = kWarps * kWarpN, kBlockM = 32;
constexpr int kChunk = 64, kXPitch = 2 * kChunk + 32, kXStages = 4;  // k of a stage of x, and bytes between its rows
constexpr int kBlocks = 2;                                           // of a multiprocessor

// The kernels of one code and type.
using Kernel = void (*)(const packed_mma::Params);
struct Kernels {
  Kernel dense, of_experts;
};
// Each file packed_tiles_*.cu has some.
template <class T>
Kernels kernels_of_integers(Code code);
template <class T>
Kernels kernels_of_blocks_of_32(Code code);
template <class T>
Kernels kernels_of_blocks_of_256(Code code);

}  // namespace packed_tiles

template <>
struct KernelOf<PackedTilesConfig> : KernelTraits<PackedTilesConfig, PackedLinear> {
  static constexpr const char* kName = "packed_tiles";
  static constexpr auto kFields = std::to_array<Field<PackedTilesConfig>>({{"cluster", &PackedTilesConfig::cluster}});
  // What packed_mma takes, where x is not in limbs, and y no more precise than weights of x's type.
  static bool takes(const PackedLinear& p);
  static Choice<PackedTilesConfig> choose(const PackedLinear& p, const Device& device);
  static bool fits(const PackedLinear& p, const PackedTilesConfig& c, const Device& device);
  static cudaError_t launch(const PackedLinear& p, const PackedTilesConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const PackedLinear& p, const PackedTilesConfig& c);
};

}  // namespace aoext::cuda
