// Dynamic quantisation of x [M, K] that lies as [K, M]: the arithmetic of quantize_rowwise.cuh for each column, values as rows.
//
// Bound by memory: 2 or 4 bytes of an element in, one out. A block has a tile of 128 k by 64 m (32 of float32): a thread takes a
// piece of 16 bytes in each of 4 rows, neighbours along m, and makes a word of four codes for each of its columns; the tile
// turns around in shared memory and leaves in rows of 128 bytes. A block of 128 k finds its scales by itself. Whole rows of K
// need them first: a launch before finds the largest magnitudes, so that x is read twice, the second time from L2 as far as it
// holds x.
#include "cuda/kernels/quantize_transposed.h"

#include <limits>

#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using namespace quantize;

constexpr int kWarp = 32, kThreads = 256, kRowsEach = 4;
constexpr int kAcross = 8, kDown = kThreads / kAcross;  // threads of a tile along m and along k
constexpr int kTileK = kDown * kRowsEach;
constexpr int kMaxRows = 64, kRowsAtOnce = 8;  // of x that a thread goes through for the largest magnitudes
static_assert(kTileK == kTransposedBlock);

template <class T>
constexpr int kPiece = 16 / sizeof(T);

// This thread's pieces of a tile; zeros where x ends.
template <class T>
struct Tile {
  Piece<T, kPiece<T>> rows[kRowsEach];
  int64_t m, k;  // of the first element

  __device__ __forceinline__ explicit Tile(const QuantizeTransposed& p) {
    const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
    m = (static_cast<int64_t>(blockIdx.x) * kAcross + across) * kPiece<T>;
    k = (static_cast<int64_t>(blockIdx.y) * kDown + down) * kRowsEach;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
      rows[i] = m < p.M && k + i < p.K ? load_piece<T, kPiece<T>>(static_cast<const T*>(p.x) + (k + i) * p.pitch + m, 0)
                                       : Piece<T, kPiece<T>>{};
  }

  __device__ __forceinline__ float at(int row, int column) const { return element<T>(rows[row].w, column); }
};

__device__ __forceinline__ uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffff; }

// The largest magnitudes of a tile's columns that a thread has, from all threads that have them.
template <class T>
__device__ __forceinline__ void of_tile(const Tile<T>& tile, uint32_t (&absmax)[kPiece<T>]) {
  __shared__ uint32_t partial[kThreads / kWarp][kAcross * kPiece<T>];
  const int lane = threadIdx.x % kWarp, across = threadIdx.x % kAcross;
#pragma unroll
  for (int j = 0; j < kPiece<T>; ++j) {
    absmax[j] = 0;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) absmax[j] = max(absmax[j], magnitude(tile.at(i, j)));
#pragma unroll
    for (int distance = kAcross; distance < kWarp; distance *= 2)
      absmax[j] = max(absmax[j], __shfl_xor_sync(0xffffffff, absmax[j], distance));
    if (lane < kAcross) partial[threadIdx.x / kWarp][across * kPiece<T> + j] = absmax[j];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPiece<T>; ++j)
#pragma unroll
    for (int warp = 0; warp < kThreads / kWarp; ++warp) absmax[j] = max(absmax[j], partial[warp][across * kPiece<T> + j]);
}

// The larger of the magnitudes `a` and those of the elements in a word of a piece.
template <class T>
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t word) {
  if constexpr (sizeof(T) == 4)
    return max(a, word & 0x7fffffff);
  else
    return __vmaxu2(a, word & 0x7fff7fff);
}

template <class T>
__global__ void __launch_bounds__(kThreads) column_absmax(const __grid_constant__ QuantizeTransposed p) {
  constexpr int kWords = sizeof(Piece<T, kPiece<T>>) / 4, kOfWord = kPiece<T> / kWords;
  __shared__ uint32_t partial[kDown][kAcross * kWords];
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int64_t m = (static_cast<int64_t>(blockIdx.x) * kAcross + across) * kPiece<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * (kDown * kMaxRows) + down;
  uint32_t absmax[kWords] = {};
  for (int begin = 0; begin < kMaxRows && first + begin * kDown < p.K && m < p.M; begin += kRowsAtOnce) {
    Piece<T, kPiece<T>> rows[kRowsAtOnce];  // all asked for before the first is looked at
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t k = first + (begin + i) * kDown;
      rows[i] = k < p.K ? load_piece<T, kPiece<T>>(static_cast<const T*>(p.x) + k * p.pitch + m, 0) : Piece<T, kPiece<T>>{};
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kWords; ++j) absmax[j] = larger<T>(absmax[j], rows[i].w[j]);
  }
#pragma unroll
  for (int j = 0; j < kWords; ++j) partial[down][across * kWords + j] = absmax[j];
  __syncthreads();
  if (threadIdx.x >= kAcross * kWords) return;
  uint32_t all[1] = {};
  for (int i = 0; i < kDown; ++i) all[0] = larger<T>(all[0], partial[i][threadIdx.x]);
#pragma unroll
  for (int j = 0; j < kOfWord; ++j) {
    const int64_t column = (static_cast<int64_t>(blockIdx.x) * kAcross * kWords + threadIdx.x) * kOfWord + j;
    if (column < p.M) atomicMax(p.absmax + column, magnitude(element<T>(all, j)));
  }
}

template <class T, Element kOutput, bool kRows>
__global__ void __launch_bounds__(kThreads) quantize_transposed(const __grid_constant__ QuantizeTransposed p) {
  constexpr int kTileM = kAcross * kPiece<T>, kWords = kTileK / 4;
  __shared__ uint32_t turned[kTileM][kWords + 1];
  const Tile<T> tile(p);
  uint32_t absmax[kPiece<T>];
  if constexpr (kRows) {
#pragma unroll
    for (int j = 0; j < kPiece<T>; ++j) absmax[j] = tile.m < p.M ? p.absmax[tile.m + j] : 0;
  } else {
    of_tile(tile, absmax);
  }
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const int64_t blocks = kRows ? 1 : (p.K + kTileK - 1) / kTileK;
  const bool stores_scales = down == 0 && tile.m < p.M && (!kRows || blockIdx.y == 0);
#pragma unroll
  for (int j = 0; j < kPiece<T>; ++j) {
    const Row<kOutput> column(absmax[j], p.power_of_two);
    if (stores_scales) p.scales[(tile.m + j) * blocks + (kRows ? 0 : blockIdx.y)] = column.stored_scale();
    float q[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) q[i] = column.quotient(tile.at(i, j));
    turned[across * kPiece<T> + j][down] = encode<kOutput>(q) & (column.finite ? 0xffffffff : 0);
  }
  __syncthreads();

  const int word = threadIdx.x % kWarp;
  const int64_t k = static_cast<int64_t>(blockIdx.y) * kTileK + 4 * word;
  for (int row = threadIdx.x / kWarp; row < kTileM; row += kThreads / kWarp) {
    const int64_t m = static_cast<int64_t>(blockIdx.x) * kTileM + row;
    if (m >= p.M || k >= p.K) break;
    uint8_t* const to = static_cast<uint8_t*>(p.values) + m * p.K + k;
    const uint32_t codes = turned[row][word];
    if (p.K % 4 == 0)
      *reinterpret_cast<uint32_t*>(to) = codes;
    else
      for (int i = 0; i < 4 && k + i < p.K; ++i) to[i] = static_cast<uint8_t>(codes >> 8 * i);
  }
}

template <class T, Element kOutput>
cudaError_t launch_to(const QuantizeTransposed& p, cudaStream_t stream) {
  constexpr int64_t kTileM = kAcross * kPiece<T>, kMost = 65535;
  const int64_t across = ceil_div(p.M, kTileM), down = ceil_div(p.K, int64_t{kTileK});
  if (across > std::numeric_limits<int>::max() || down > kMost) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(down));
  if (p.block < p.K) {
    quantize_transposed<T, kOutput, false><<<grid, kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  const auto splits = static_cast<unsigned>(ceil_div(p.K, int64_t{kDown * kMaxRows}));
  column_absmax<T><<<dim3(grid.x, splits), kThreads, 0, stream>>>(p);
  quantize_transposed<T, kOutput, true><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_from(const QuantizeTransposed& p, cudaStream_t stream) {
  switch (p.output) {
    case Element::int8: return launch_to<T, Element::int8>(p, stream);
    case Element::e4m3: return launch_to<T, Element::e4m3>(p, stream);
    default: return launch_to<T, Element::e5m2>(p, stream);
  }
}

}  // namespace

bool quantize_transposed_takes(const QuantizeTransposed& p) {
  const int piece = 16 / bytes_of(p.type);
  return (p.block >= p.K || p.block == kTransposedBlock) && p.M % piece == 0 && p.pitch % piece == 0 && is_aligned(p.x) &&
         p.K <= int64_t{65535} * kTileK;
}

cudaError_t launch_quantize_transposed(const QuantizeTransposed& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_from<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_from<__half>(p, stream);
    default: return launch_from<float>(p, stream);
  }
}

}  // namespace aoext::cuda
