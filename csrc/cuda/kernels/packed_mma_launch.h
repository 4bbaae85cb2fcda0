// What packed_mma.cu and packed_tiles.cu have in common.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/fits.h"
#include "cuda/kernels/packed_mma_params.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda::packed_mma {

constexpr int64_t kMost = int64_t{1} << 30;  // of M, N and K
constexpr int64_t kMostRowTiles = 65535;     // places along y

// x of bf16 or fp16, or limbs of bf16, by weights whose scales can be copied.
inline bool can_read(const PackedLinear& p) {
  const bool type = p.type == Element::bf16 || (p.type == Element::fp16 && p.limbs == 1);
  if (!type || p.K % 32 != 0 || std::max({p.M * p.limbs, p.N, p.K}) > kMost) return false;
  return !has_scales_beside(p.code) || (p.group_size % 16 == 0 && p.N * bytes_of(p.scale_type) % 16 == 0);
}

// What follows from slices of so many k, and block_n output channels a block. The bytes of a slice's scales.
inline int lay_out_scales(Params& a, int slice_k, int block_n) {
  const PackedLinear& p = a.p;
  a.scale_k = 32;
  if (has_scales_beside(p.code)) {
    a.scale_k = p.group_size % 128 == 0 ? 128 : p.group_size % 32 == 0 ? 32 : 16;
    while (16 << a.line_log2 < block_n * bytes_of(p.scale_type)) ++a.line_log2;
    const auto units = static_cast<uint64_t>(p.group_size / 16);
    while (uint64_t{1} << a.group_shift < units) ++a.group_shift;
    a.group_magic = static_cast<uint32_t>(((uint64_t{1} << (31 + a.group_shift)) + units - 1) / units);
  }
  while (1 << a.scale_log2 < a.scale_k) ++a.scale_log2;
  const int groups = groups_of(p.code, slice_k, a.scale_k);
  a.pairs_pitch = groups + 1;
  return has_scales_beside(p.code) ? groups * 2 * block_n * bytes_of(p.scale_type) : 0;
}

// What a launch for few rows is cut into: blocks, each of so many warps along N and along K, and what they read beside weights.
struct Cut {
  int block_n, k_warps, registers;  // of a thread
  double blocks, x_bytes;           // of all rows of a block
  size_t shared_bytes;
};

// Microseconds. Slices of all blocks, round by round: a warp takes so long for one, however few there are, and a multiprocessor's
// warps take turns. `weights`: how often all of it is read from memory.
inline double time_of_slices(const PackedLinear& p, const Cut& cut, double weights, const PackedMmaFit& fit,
                             const Device& device) {
  constexpr double kRegisters = 65536;  // of a multiprocessor
  const int slice_k = slice_of(p.code, true).k;
  const double sms = device.multiprocessors, warps = cut.block_n / kWarpTile * cut.k_warps;
  const double by_memory = std::floor(device.shared_memory_per_multiprocessor / static_cast<double>(cut.shared_bytes + 1024));
  const double resident = std::max(1.0, std::min(by_memory, std::floor(kRegisters / (32 * warps * cut.registers))));
  const double turns = std::max(1.0, cut.blocks / (sms * resident));
  const double beside = std::min(resident, std::ceil(cut.blocks / sms)) * warps;
  const double slices = static_cast<double>(ceil_div(p.K, int64_t{slice_k} * cut.k_warps)) * slice_k / 256;
  const double computing = turns * (fit.fill + slices * std::max(fit.alone, beside * fit.turn)) * (1 + fit.narrow / warps);
  const double bytes = weights * static_cast<double>(p.N * p.row_bytes);
  const double again = cut.blocks * (static_cast<double>(cut.block_n * p.row_bytes) + cut.x_bytes);
  return fit.launch + std::max({computing, bytes / device.bandwidth, again / (device.bandwidth * fit.caches)});
}

// f(block_n, k_warps) of what they may be.
template <class F>
void for_each_cut(F&& f) {
  for (const int k_warps : {1, 2, 4, 8})
    for (const int block_n : {16, 32, 64, 128}) f(block_n, k_warps);
}
inline bool is_cut(int block_n, int k_warps, int most_threads) {
  bool found = false;
  for_each_cut([&](int n, int k) { found = found || (n == block_n && k == k_warps); });
  return found && block_n / kWarpTile * k_warps * 32 <= most_threads;
}

// The kernels of a code, of one of these three.
template <class Kernels>
Kernels kernels_of(Code code, Kernels (*integers)(Code), Kernels (*of_32)(Code), Kernels (*of_256)(Code)) {
  const Layout of = layout_of(code);
  return of.group == 0 ? integers(code) : of.values == 256 ? of_256(code) : of_32(code);
}

}  // namespace aoext::cuda::packed_mma
