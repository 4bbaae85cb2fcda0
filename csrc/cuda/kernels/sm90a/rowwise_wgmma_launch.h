// What launchers of rowwise_wgmma.cuh and scaled_wgmma.cuh share: the parameters of tiles, of one weight or of experts, and the
// tensor maps of both operands.
#pragma once

#include "cuda/kernels/sm90a/rowwise_wgmma_choice.h"
#include "cuda/kernels/sm90a/tensor_map.h"

namespace aoext::cuda::wgmma {

template <class Scheduler>
RowwiseParams<Scheduler> rowwise_params(const RowwiseLinear& p, const WgmmaConfig& c) {
  RowwiseParams<Scheduler> a{};
  a.p = p;
  a.tiles = {static_cast<int>(ceil_div(p.N, c.block_n)), static_cast<int>(ceil_div(p.M, c.block_m))};
  a.tile_n = c.block_n;
  if constexpr (kGrouped<Scheduler>) {
    a.schedule = {p.ends, static_cast<int>(p.experts), static_cast<int>(p.M), a.tiles.along_n,
                  static_cast<int>(ceil_div(p.K, kLine))};
    a.copy_rows = copy_rows(ceil_div(p.M, p.experts), c.block_m);
  } else {
    a.schedule = schedule_of(p.M, p.N, p.K, c);
    a.copy_rows = copy_rows(p.M, c.block_m);
    a.w_policy = a.tiles.along_m == 1 ? kEvictFirst : kEvictNormal;
  }
  return a;
}

// Tiles of 128 k by so many rows.
template <class Problem>
TensorMap lines_of_x(const Problem& p, int rows) {
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.x, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.M}, {p.K}, {kLine, rows}};
}
template <class Problem>
TensorMap lines_of_w(const Problem& p, int64_t experts, int rows) {
  if (experts == 0)
    return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight, CU_TENSOR_MAP_SWIZZLE_128B, {p.K, p.N}, {p.K}, {kLine, rows}};
  return {CU_TENSOR_MAP_DATA_TYPE_UINT8, p.weight,         CU_TENSOR_MAP_SWIZZLE_128B,
          {p.K, p.N, experts},           {p.K, p.K * p.N}, {kLine, rows, 1}};
}

}  // namespace aoext::cuda::wgmma
