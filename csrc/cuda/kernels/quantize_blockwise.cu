// Dynamic quantisation by blocks of k: the arithmetic of quantize_rowwise.cuh for each block of a row.
//
// Bound by memory: 2 or 4 bytes of an element in, one out. Where a block is a power of two of pieces of 16 bytes, at most a
// warp's, neighbouring lanes have one each and the largest magnitude goes around them by shuffles; a thread of many has four of
// them in flight at once. Other blocks, and rows that begin anywhere, have a warp each, which reads them twice.
#include "cuda/kernels/quantize_blockwise.h"

#include <algorithm>
#include <limits>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using namespace quantize;

constexpr int kWarp = 32, kThreads = 256;
constexpr int kMostPieces = 4;            // of a thread
constexpr int64_t kManyBlocks = 4 * 132;  // at least, where a thread takes so many pieces

// Rows count as whole blocks: past K the last one has no elements.
struct Problem {
  QuantizeBlockwise p;
  uint32_t blocks;      // of a row
  int team, team_log2;  // lanes of a block
  int64_t pieces;       // of all rows, or blocks where a warp has one
};

template <class T, Element kOutput, int kPieces>
__global__ void __launch_bounds__(kThreads) quantize_pieces(const __grid_constant__ Problem a) {
  constexpr int kCount = 16 / sizeof(T);
  start_next_kernel();
  wait_for_last_kernel();
  const QuantizeBlockwise& p = a.p;
  const uint32_t row_pieces = a.blocks << a.team_log2;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * (kThreads * kPieces) + threadIdx.x;
  Piece<T, kCount> kept[kPieces];
  int64_t element_at[kPieces], block_at[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int64_t piece = base + i * kThreads;
    const int64_t m = a.pieces <= 0xffffffff ? static_cast<uint32_t>(piece) / row_pieces : piece / row_pieces;
    const uint32_t in_row = static_cast<uint32_t>(piece - m * row_pieces);
    const bool inside = piece < a.pieces && static_cast<int64_t>(in_row) * kCount < p.K;
    element_at[i] = inside ? m * p.K + in_row * kCount : -1;
    block_at[i] = inside && in_row % a.team == 0 ? m * p.scale_m + (in_row >> a.team_log2) * p.scale_k : -1;
    kept[i] = inside ? load_piece<T, kCount>(static_cast<const T*>(p.x) + element_at[i], 0) : Piece<T, kCount>{};
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    uint32_t absmax = absmax_of<T>(kept[i], 0);
    for (int distance = a.team / 2; distance > 0; distance /= 2)
      absmax = max(absmax, __shfl_xor_sync(0xffffffff, absmax, distance));
    const Row<kOutput> row(absmax, p.power_of_two);
    if (block_at[i] >= 0) p.scales[block_at[i]] = row.stored_scale();
    if (element_at[i] >= 0)
      *reinterpret_cast<Words<kCount / 4>*>(static_cast<uint8_t*>(p.values) + element_at[i]) =
          row.template codes<T, kCount>(kept[i]);
  }
}

template <class T, Element kOutput>
__global__ void __launch_bounds__(kThreads) quantize_any(const __grid_constant__ Problem a) {
  start_next_kernel();
  wait_for_last_kernel();
  const QuantizeBlockwise& p = a.p;
  const int lane = threadIdx.x % kWarp;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (block >= a.pieces) return;
  const int64_t m = block / a.blocks, in_row = block - m * a.blocks, begin = in_row * p.block;
  const auto count = static_cast<uint32_t>(min(p.block, p.K - begin));
  const T* const x = static_cast<const T*>(p.x) + m * p.K + begin;
  uint8_t* const values = static_cast<uint8_t*>(p.values) + m * p.K + begin;
  uint32_t absmax = 0;
  for (uint32_t i = lane; i < count; i += kWarp) absmax = absmax_of<T>(load_piece<T, 1>(x, i), absmax);
  absmax = __reduce_max_sync(0xffffffff, absmax);
  const Row<kOutput> row(absmax, p.power_of_two);
  if (lane == 0) p.scales[m * p.scale_m + in_row * p.scale_k] = row.stored_scale();
  for (uint32_t i = lane; i < count; i += kWarp)
    values[i] = static_cast<uint8_t>(row.template codes<T, 1>(load_piece<T, 1>(x, i)).w[0]);
}

template <class T, Element kOutput>
cudaError_t launch_to(const QuantizeBlockwise& p, cudaStream_t stream) {
  constexpr int kCount = 16 / sizeof(T);
  Problem a{p, static_cast<uint32_t>(ceil_div(p.K, p.block)), 1, 0, 0};
  while (a.team < kWarp && a.team * kCount < p.block) a.team *= 2, ++a.team_log2;
  const bool pieces = a.team * kCount == p.block && p.K % kCount == 0 && is_aligned(p.x) && is_aligned(p.values, kCount);
  a.pieces = p.M * a.blocks * (pieces ? a.team : 1);
  const bool many = pieces && a.pieces >= kManyBlocks * kThreads * kMostPieces;
  const int64_t blocks = ceil_div(a.pieces, pieces ? kThreads * (many ? kMostPieces : 1) : kThreads / kWarp);
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, 1, Overlap::after_ours};
  if (many) return launch(quantize_pieces<T, kOutput, kMostPieces>, grid, a);
  return launch(pieces ? quantize_pieces<T, kOutput, 1> : quantize_any<T, kOutput>, grid, a);
}

template <class T>
cudaError_t launch_from(const QuantizeBlockwise& p, cudaStream_t stream) {
  switch (p.output) {
    case Element::int8: return launch_to<T, Element::int8>(p, stream);
    case Element::e4m3: return launch_to<T, Element::e4m3>(p, stream);
    default: return launch_to<T, Element::e5m2>(p, stream);
  }
}

}  // namespace

cudaError_t launch_quantize_blockwise(const QuantizeBlockwise& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_from<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_from<__half>(p, stream);
    default: return launch_from<float>(p, stream);
  }
}

}  // namespace aoext::cuda
