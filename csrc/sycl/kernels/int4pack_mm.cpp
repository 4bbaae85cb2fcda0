// Few rows of x by a weight in the tinygemm layout: y[m, n] = Σ_k x[m, k] · ((u[n, k] − 8) · scale[k / G, n] + zero[k / G, n]).
//
// A work-group computes R rows of y by 8 columns, an n-tile of the layout. Its sub-groups split K as in split_k.h: sub-group s
// multiplies the k-blocks s, s + S, s + 2S, …, and the partial sums are added in local memory, always in the same order. Lane
// g + 8h computes column g; of each k-step it multiplies the words t = 2h and 2h + 1, which hold k = 8p + 4h .. 8p + 4h + 3 for
// p = 0..3, by four neighbours of x, which all lanes of its half load at once. So a sub-group reads 128 · B neighbouring bytes of
// weights (B = inner_k_tiles / 2) in B k-steps, every weight once for R rows.
//
// A weight is dequantised in float32 by one fused multiply-add. A lane sums the products of a k-block, 64, before it adds them to
// its total, so that the error stays small for any K. Rows past M read the last one and are not stored.
#include "kernel.h"
#include "numeric.h"
#include "vector.h"

namespace aoext::xpu {
namespace {

constexpr int kColumns = 8;

template <int R>
inline void int4pack_mm(void* y, const void* x, const void* weight, const void* scale_and_zero, int64_t M, int64_t N, int K,
                        int group_size, int inner_k_tiles) {
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int sub_groups = sg.get_group_linear_range(), s = sg.get_group_linear_id(), lane = sg.get_local_linear_id();
  const int column = lane % kColumns, half = lane / kColumns, blocks = inner_k_tiles / 2;
  const int64_t first_row = static_cast<int64_t>(item.get_group(0)) * R, tile = item.get_group(1);
  const int64_t n = tile * kColumns + column;

  const uint16_t* rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const uint16_t*>(x) + sycl::min(first_row + r, M - 1) * K + 4 * half;
  const uint32_t* const words = static_cast<const uint32_t*>(weight) + tile * K + (column * 4 + half * 2) * blocks;

  float total[R];
#pragma unroll
  for (int r = 0; r < R; ++r) total[r] = 0;
  for (int block = s * kBlock; block < K; block += sub_groups * kBlock) {
    float block_sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) block_sum[r] = 0;
    const int end = sycl::min(block + kBlock, K);
    for (int k = block; k < end; k += kStep) {
      const unsigned step = static_cast<unsigned>(k) / kStep, k_tile = step / static_cast<unsigned>(blocks);
      const uint32_t* const own = words + static_cast<int64_t>(k_tile) * (32 * blocks) + (step - k_tile * blocks);
      const uint32_t word[2] = {own[0], own[blocks]};
      const int64_t group = static_cast<int64_t>(static_cast<unsigned>(k) / static_cast<unsigned>(group_size)) * N + n;
      const float scale = load_float(scale_and_zero, 2 * group, Element::bf16),
                  zero = load_float(scale_and_zero, 2 * group + 1, Element::bf16);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        float w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int u = static_cast<int>(word[j / 2] >> (j % 2 * 16 + p * 4) & 15u);
          w[j] = sycl::fma(static_cast<float>(u - 8), scale, zero);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const auto values = *reinterpret_cast<const Vector<uint16_t, 4>*>(rows[r] + k + 8 * p);
#pragma unroll
          for (int j = 0; j < 4; ++j) block_sum[r] = sycl::fma(bf16_to_float(values[j]), w[j], block_sum[r]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) total[r] += block_sum[r];
  }

  float* const partial = local_memory<float, kMaxSubGroups * R * kLanes>();
#pragma unroll
  for (int r = 0; r < R; ++r) partial[(s * R + r) * kLanes + lane] = total[r];
  sycl::group_barrier(item.get_group());
  for (int i = item.get_local_linear_id(); i < R * kColumns; i += sub_groups * kLanes) {
    const int r = i / kColumns, c = i % kColumns;
    float sum = 0;
    for (int other = 0; other < sub_groups; ++other) {
      const float* const both = &partial[(other * R + r) * kLanes + c];
      sum += both[0] + both[kColumns];
    }
    if (first_row + r < M) static_cast<uint16_t*>(y)[(first_row + r) * N + tile * kColumns + c] = float_to_bf16(sum);
  }
}

}  // namespace
}  // namespace aoext::xpu

// x starts at a multiple of 8 bytes, weight of 4; K and group_size are multiples of 32.
#define INT4PACK_MM(R)                                                                                                  \
  AOEXT_KERNEL(int4pack_mm_m##R)                                                                                        \
  (void* y, const void* x, const void* weight, const void* scale_and_zero, int64_t M, int64_t N, int K, int group_size, \
   int inner_k_tiles) {                                                                                                 \
    aoext::xpu::int4pack_mm<R>(y, x, weight, scale_and_zero, M, N, K, group_size, inner_k_tiles);                       \
  }
INT4PACK_MM(1)
INT4PACK_MM(4)
INT4PACK_MM(8)
