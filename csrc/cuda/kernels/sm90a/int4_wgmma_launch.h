// Launching kernels of int4_wgmma.cuh: what those for one weight and for those of experts share.
#pragma once

#include <array>

#include "cuda/kernels/instances.h"
#include "cuda/kernels/sm90a/int4_wgmma.cuh"
#include "cuda/kernels/sm90a/weight_only_launch.h"

namespace aoext::cuda::int4_wgmma {

// What tells instances apart.
using Key = std::array<int, 5>;
constexpr std::array<const char*, 5> kKeyNames = {"type", "scale", "scale_chunks", "block_n", "block_m"};

template <class Config>
Key key_of(const Int4Linear& p, const Config& c) {
  return {int(p.type), int(p.scale_type), wgmma::scale_chunks(p), c.block_n, c.block_m};
}

// f(key) of each, of tiles of these shapes.
template <class Shapes, class F>
void for_each_instance(const Shapes& shapes, F&& f) {
  for (const Element type : {Element::bf16, Element::fp16})
    for (const Element scale : {type, Element::fp32})
      for (const int chunks : {1, 2, 4})
        wgmma::for_each_shape(shapes, [&](auto shape) { f(Key{int(type), int(scale), chunks, shape.kBlockN, shape.kBlockM}); });
}

// launch<T, S, kScaleChunks>() by the types of x and of scales, and by how scales come.
template <class T, class S, class Launch>
cudaError_t with_chunks(const Int4Linear& p, Launch&& launch) {
  switch (wgmma::scale_chunks(p)) {
    case 1: return launch.template operator()<T, S, 1>();
    case 2: return launch.template operator()<T, S, 2>();
    default: return launch.template operator()<T, S, 4>();
  }
}

template <class Launch>
cudaError_t with_types(const Int4Linear& p, Launch&& launch) {
  if (p.type == Element::bf16)
    return p.scale_type == Element::bf16 ? with_chunks<__nv_bfloat16, __nv_bfloat16>(p, launch)
                                         : with_chunks<__nv_bfloat16, float>(p, launch);
  return p.scale_type == Element::fp16 ? with_chunks<__half, __half>(p, launch) : with_chunks<__half, float>(p, launch);
}

}  // namespace aoext::cuda::int4_wgmma
