// What a launch of packed_mma.cuh or packed_tiles.cuh needs, and how they cut K and lie in shared memory.
#pragma once

#include "cuda/kernels/packed.h"

namespace aoext::cuda::packed_mma {

constexpr int kStages = 2, kWarpTile = 16;  // of shared memory; output channels of an mma

// How a stage lies in shared memory: k of a warp's slice, more where they are few bytes and x has few rows; bytes between rows of
// x, so that four rows of a read lie in different banks; bytes of a row of codes in a slice, and between rows, as many chunks of
// 16 as they can touch, an odd number.
struct Slice {
  int k, x_pitch, bytes, pitch;
};
constexpr Slice slice_of(Code code, bool few_rows) {
  const Layout of = layout_of(code);
  const int k = of.code.bits() <= 3 && few_rows ? 512 : 256, bytes = k / of.values * of.bytes;
  return {k, 2 * k + 32, bytes, ((bytes + 14 + 15) / 16 | 1) * 16};
}

struct Params {
  PackedLinear p;
  int warps_n, k_warps;
  int rows;  // of x in a tile
  int scale_k, scale_log2,
      line_log2;         // of scales beside codes: k that share one in shared memory; chunks of 16 bytes that a block's lie in
  uint32_t group_magic;  // k / group_size = umulhi(k / 8, magic) >> shift
  int group_shift;
  int pairs_pitch;               // scales and zeros between rows, of a slice's groups
  int stage_bytes, slice_bytes;  // and of a slice in shared memory: rows of codes, then of x, then scales
  int scales, pairs;             // where these begin in a slice, and the pairs in shared memory
  int steps;                     // slices of a block that shares K with others; or k that x is filled up to
  int run_log2;                  // of the k that have a column of an mma of their own
};

// Groups of a slice, or of what shares a scale there.
constexpr int groups_of(Code code, int slice_k, int scale_k) {
  const Layout of = layout_of(code);
  return slice_k / (of.group == 0 ? scale_k : of.group);
}

}  // namespace aoext::cuda::packed_mma
