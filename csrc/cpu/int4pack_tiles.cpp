#include "cpu/int4pack_tiles.h"

#include "cpu/tiles.h"

namespace aoext::cpu {

void int4pack_tiles(const Tiles& tiles, int64_t M, const void* x, const Int4PackWeight& weight, void* y,
                    const ParallelFor& parallel_for) {
  constexpr int64_t kBytes = 2;  // of a bfloat16
  const int64_t N = weight.N;
  tile_product<float>(tiles, InputRows{x, Element::bf16, kBytes, M, weight.K}, N, weight, parallel_for,
                      [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
                        kernels().scale_row(Element::bf16, sums, 1.0f, row_scales, nullptr,
                                            static_cast<char*>(y) + (m * N + first) * kBytes, count);
                      });
}

}  // namespace aoext::cpu
