// The tinygemm layout on CUDA: packing, unpacking, and the product with few rows of input.
#pragma once

#include "cuda/kernels/kernel.h"

namespace aoext::cuda {

// y[M, N] = x[M, K] · wᵀ with w = (u − 8) · scale + zero, everything contiguous, bfloat16, nothing empty.
struct TinygemmLinear {
  const void* x;               // [M, K], 16-byte aligned
  const void* weight;          // int32 [N/8][K/(16·inner_k_tiles)][32][inner_k_tiles/2], 16-byte aligned
  const void* scale_and_zero;  // [K/group_size, N, 2], 4-byte aligned
  void* y;                     // [M, N]
  int64_t M, N, K, group_size;
  int inner_k_tiles;
};

// How tinygemm_mm cuts a problem; what its numbers mean stands in tinygemm_mm.cuh.
struct TinygemmConfig {
  int block_m;       // rows of x, at most: 8 or 16, columns of the mma tiles
  int warps;         // of a block
  int blocks;        // that share the row tiles
  int phase_chunks;  // chunks of 128 of k whose inputs are in shared memory at a time
  int overlaps;      // whether it may start while the last kernel ends (launch.h), on Hopper

  bool operator==(const TinygemmConfig&) const = default;
};

constexpr int kTinygemmMaxRows = 16;  // of x, in one launch

template <>
struct KernelOf<TinygemmConfig> : KernelTraits<TinygemmConfig, TinygemmLinear> {
  static constexpr const char* kName = "tinygemm_mm";
  static constexpr auto kFields = std::to_array<Field<TinygemmConfig>>({{"block_m", &TinygemmConfig::block_m},
                                                                        {"warps", &TinygemmConfig::warps},
                                                                        {"blocks", &TinygemmConfig::blocks},
                                                                        {"phase_chunks", &TinygemmConfig::phase_chunks},
                                                                        {"overlaps", &TinygemmConfig::overlaps}});
  static bool takes(const TinygemmLinear& p) { return p.M <= kTinygemmMaxRows; }
  static Choice<TinygemmConfig> choose(const TinygemmLinear& p, const Device& device);
  // On a device with so much shared memory for a block.
  static bool fits(const TinygemmLinear& p, const TinygemmConfig& c, const Device& device);
  static cudaError_t launch(const TinygemmLinear& p, const TinygemmConfig& c, void* workspace, cudaStream_t stream);
  static std::string instances();
  static std::string instance(const TinygemmLinear& p, const TinygemmConfig& c);
};

// uint8 [N, K/2], the even k in the high nibble, to the packed layout. Pointers are 16-byte aligned.
cudaError_t launch_tinygemm_pack(const void* weight, void* packed, int64_t N, int64_t K, int inner_k_tiles, cudaStream_t stream);

// The packed layout to int8 [N, K/2] of docs/operators.md: the even k in the low nibble, nibbles signed.
cudaError_t launch_tinygemm_unpack(const void* packed, void* weight, int64_t N, int64_t K, int inner_k_tiles,
                                   cudaStream_t stream);

// scale_and_zero [groups, N, 2] to scale and zero [groups, N], of 16-bit elements.
cudaError_t launch_tinygemm_split(const void* scale_and_zero, void* scale, void* zero, int64_t count, cudaStream_t stream);

}  // namespace aoext::cuda
