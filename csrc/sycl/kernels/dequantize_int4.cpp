// int4 weights to high precision: w [N, K] = q · scale + zero_point, in float32 by one fused operation, rounded once.
//
// A sub-group dequantises 32 rows one after the other, so that a cache line of scales [K/G, N] serves all its rows. It
// dequantises 16 pieces of each row along k, one a lane: 8 weights (wide), for which a sub-group reads 64 bytes of int4 and
// writes 256 bytes of bfloat16, or 2 weights (any). The sub-groups of a work-group are neighbours along k.
#include "kernel.h"
#include "piece.h"

namespace aoext::xpu {
namespace {

constexpr int kRows = 32;

// q · scale + zero_point of the nibble that leads `high`.
inline float dequantized(uint32_t high, float scale, float zero_point) {
  return sycl::fma(static_cast<float>(static_cast<int32_t>(high) >> 28), scale, zero_point);
}

}  // namespace
}  // namespace aoext::xpu

// group_size is a multiple of 8, weight starts at a 4-byte boundary, out at one of 16 bytes.
AOEXT_KERNEL(dequantize_int4_wide)
(void* out, const void* weight, const void* scale, const void* zero_point, int64_t N, int K, int group_size, Element output_type,
 Element scale_type) {
  using namespace aoext::xpu;
  const auto item = this_item();
  const int own = static_cast<int>(item.get_global_id(1)) * 8, k = sycl::min(own, K - 8);
  const int64_t first = static_cast<int64_t>(item.get_group(0)) * kRows;
  const int rows = static_cast<int>(sycl::min(N - first, int64_t{kRows}));
  const int64_t scales = static_cast<int64_t>(static_cast<unsigned>(k) / static_cast<unsigned>(group_size)) * N + first;
  const char* q = static_cast<const char*>(weight) + first * (K / 2) + k / 2;
  const int64_t bytes = output_type == Element::fp32 ? 4 : 2;
  char* w = static_cast<char*>(out) + (first * K + k) * bytes;
  // The next row's loads are issued before this row is computed.
  uint32_t next = *reinterpret_cast<const uint32_t*>(q);
  float next_scale = load_float(scale, scales, scale_type), next_zero = load_float(zero_point, scales, scale_type);
  for (int n = 0; n < rows; ++n, w += K * bytes) {
    const uint32_t dword = next;
    const float s = next_scale, z = next_zero;
    if (n + 1 < rows) {
      q += K / 2;
      next = *reinterpret_cast<const uint32_t*>(q);
      next_scale = load_float(scale, scales + n + 1, scale_type);
      next_zero = load_float(zero_point, scales + n + 1, scale_type);
    }
    Piece<8> piece;
#pragma unroll
    for (int j = 0; j < 8; ++j) piece[j] = dequantized(dword << (28 - 4 * j), s, z);
    store_piece(w, piece, output_type, own < K);
  }
}

// Any even K: a group may start in the middle of a byte.
AOEXT_KERNEL(dequantize_int4_any)
(void* out, const void* weight, const void* scale, const void* zero_point, int64_t N, int K, int group_size, Element output_type,
 Element scale_type) {
  using namespace aoext::xpu;
  const auto item = this_item();
  const int k = static_cast<int>(item.get_global_id(1)) * 2;
  if (k >= K) return;
  const int64_t first = static_cast<int64_t>(item.get_group(0)) * kRows;
  const int rows = static_cast<int>(sycl::min(N - first, int64_t{kRows}));
  for (int n = 0; n < rows; ++n) {
    const uint32_t byte = static_cast<const uint8_t*>(weight)[(first + n) * (K / 2) + k / 2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t i = static_cast<int64_t>(static_cast<unsigned>(k + j) / static_cast<unsigned>(group_size)) * N + first + n;
      store_float(out, (first + n) * K + k + j, output_type,
                  dequantized(byte << (28 - 4 * j), load_float(scale, i, scale_type), load_float(zero_point, i, scale_type)));
    }
  }
}
