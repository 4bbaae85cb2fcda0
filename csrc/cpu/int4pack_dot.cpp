// Words become float32 rows in cache, kTileRows at a time, which then meet a block of rows of x: the weight is read once for up
// to kRows rows. A thread takes kTile rows of w, whose scales are a 128-byte line of each group. Scratch of a thread: kTileRows
// rows of w and the sums; of all: a block of x as float32.
#include "cpu/int4pack_dot.h"

#include <algorithm>

namespace aoext::cpu {
namespace {

constexpr int64_t kRows = 64;                 // of x in a block: at least as many as the operator's plan gives to `dot`
constexpr int64_t kTile = 32;                 // of w for a thread at a time
constexpr int64_t kGrain = int64_t{1} << 15;  // weights that pay for a thread
constexpr int64_t kBytes = 2;                 // of a bfloat16

void multiply_block(int64_t M, const char* x, const Int4PackWeight& weight, char* y, const ParallelFor& parallel_for) {
  const int64_t N = weight.N, K = weight.K, ld = (K + kPad - 1) / kPad * kPad;
  std::vector<float> rows(M * ld);
  for (int64_t m = 0; m < M; ++m) kernels().to_float(Element::bf16, x + m * K * kBytes, &rows[m * ld], K);
  parallel_for((N + kTile - 1) / kTile, std::max<int64_t>(1, kGrain / (kTile * K)), [&](int64_t begin, int64_t end) {
    std::vector<float> w(kTileRows * ld), acc(M * kTile), sums(M * kTileRows);
    const auto tile_sums = reinterpret_cast<float (*)[kTileRows]>(sums.data());
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kTile, count = std::min(kTile, N - first);
      const Int4PackWeight::Tile tile(weight, first, count);
      for (int64_t i = 0; i < count; i += kTileRows) {  // count is a multiple of 8
        for (int r = 0; r < kTileRows; ++r) tile.row(i + r, &w[r * ld]);
        std::fill(sums.begin(), sums.end(), 0.0f);
        kernels().dot_f32(rows.data(), ld, static_cast<int>(M), w.data(), ld, ld, tile_sums);
        for (int64_t m = 0; m < M; ++m) std::copy(tile_sums[m], tile_sums[m] + kTileRows, &acc[m * kTile + i]);
      }
      for (int64_t m = 0; m < M; ++m)
        kernels().scale_row(Element::bf16, &acc[m * kTile], 1.0f, nullptr, nullptr, y + (m * N + first) * kBytes, count);
    }
  });
}

}  // namespace

void int4pack_dot(int64_t M, const void* x, const Int4PackWeight& weight, void* y, const ParallelFor& parallel_for) {
  for (int64_t m = 0; m < M; m += kRows)
    multiply_block(std::min(kRows, M - m), static_cast<const char*>(x) + m * weight.K * kBytes, weight,
                   static_cast<char*>(y) + m * weight.N * kBytes, parallel_for);
}

}  // namespace aoext::cpu
