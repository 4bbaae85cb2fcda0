// y[M, N] = (x[M, K] · w[N, K]ᵀ) · row_scale · scale + bias by mma.sync, w 8 bits wide; or with a scale a block of w as well, of
// 8 bits or of 4 through a table of 16 (blocks_mma.h).
//
// swap_ab: weights are the A operand (16 output channels × k), x is B (k × 8 rows), so an accumulator is a piece of yᵀ. A block
// computes BLOCK_N output channels × BLOCK_M rows of x, and loads k-tiles into kStages stages by cp.async, both operands as they
// lie in global memory. Its warps share the outputs or, where a block has few, split the k of each stage. An mma takes
//   32 k  of int8, and of float8 where the tensor cores have it: both operands come by ldmatrix;
//   16 k  of bf16 or fp16, to which 8-bit numbers are converted in registers. ldmatrix moves pairs of bytes: lane (g = lane / 4,
//         t = lane % 4) gets k 4t … 4t + 3 of row g in a word, which is widened to what it holds of that row for one mma, as the
//         order of k inside an mma is free as long as A and B agree. From a 16-bit x it reads the same four k, 8 bytes.
// A word of 4-bit codes holds eight k of a lane: four for each of two mma, and x is read to match.
// Scales of blocks come beside the weights as [16 k][BLOCK_N] of x's type (arrange_scales.cuh), and multiply what is widened.
// The order of output channels is free too: a lane owns warp_n / 8 neighbours, so that one store writes its results for a row.
//
// Weights are one mma's k ahead of the tensor cores in a second set of registers, and x is reloaded into the registers just read.
// The last mma of a stage needs registers only, so its shared memory is refilled there, and kStages buffers hold kStages stages.
// With 64 × 64 outputs a warp, 32 mma come with 8 ldmatrix of int8; with 4, and 48 instructions to convert, of float8 as fp16;
// with 2, 8 reads of x and 64 instructions to convert of int8 by bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/mma_tiles.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda::rowwise_mma {

// Types of x and w; float8: the tensor cores multiply float8 as it is.
template <Element x, Element w, bool float8 = false>
struct Kind {
  static constexpr Element kX = x, kW = w;
  static constexpr bool kInt8 = x == Element::int8, kFloat8 = float8, kDirect = kInt8 || kFloat8;
  static constexpr bool kWideX = x == Element::bf16 || x == Element::fp16;
  static constexpr int kSizeX = kWideX ? 2 : 1;
  static constexpr int kDepth = kDirect ? 32 : 16;  // k of an mma
  static constexpr bool kBlocks = false, kTable = w == Element::lut4;
  static constexpr int kCodes = kTable ? 2 : 1;  // of a byte of w
  using Sum = std::conditional_t<kInt8, int, float>;
  using Value = std::conditional_t<x == Element::bf16, __nv_bfloat16, __half>;  // to which 8-bit numbers are converted
};

// With a scale for 16 k, of blocks.
template <Element x, Element w>
struct BlockKind : Kind<x, w> {
  static constexpr bool kBlocks = true;
};
constexpr int kScaleK = 16;

// Four matrices of 8 rows of 16 bytes; lane 8 i + j has the address of row j of matrix i, and gets of each bytes 4t … 4t + 3 of
// row g.
__device__ __forceinline__ void read_matrices(uint32_t* v, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address));
}

// The tensor cores keep about 14 bits of a sum of float8, so they add up 32 products only; float32 adds those.
template <Element W>
__device__ __forceinline__ void mma_float8(float (&d)[4], const uint32_t (&a)[4], const uint32_t* b) {
#if __CUDA_ARCH__ >= 890
  float s[4];
  if constexpr (W == Element::e4m3)
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] += s[i];
#else
  __trap();
#endif
}

// What a launch needs beside the problem.
struct Params {
  RowwiseLinear p;
  int tiles_m;         // of BLOCK_M rows of x
  int tiles_n;         // of BLOCK_N output channels
  int steps;           // k-tiles of a k-split
  bool vector_y;       // y can be stored by 16 bytes
  void* partials;      // [tiles, splits, block_n · block_m] in the order of the accumulators
  unsigned* counters;  // [tiles], zero
  const void* scales;  // of blocks: [ceil(K / 16), stride] of x's type, one behind the other for experts
  int64_t groups, stride;
  const Table16* table;
};

// Warps of a block along N, M and K, outputs of a warp along N and M, k that a warp has of a stage, stages.
template <int warps_n, int warps_m, int warps_k, int warp_n, int warp_m, int block_k, int stages>
struct Tile {
  static constexpr int kWarpsN = warps_n, kWarpsM = warps_m, kWarpsK = warps_k, kWarpN = warp_n, kWarpM = warp_m;
  static constexpr int kBlockK = block_k, kStageK = kWarpsK * kBlockK, kStages = stages;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsM * kWarpsK,
                       kBlocks = kThreads == 128 ? 2 : 1;  // that a multiprocessor has room for
  static constexpr int kBlockN = kWarpsN * kWarpN, kBlockM = kWarpsM * kWarpM;
  static constexpr int kChannels = kWarpN / 8;                          // of a lane
  static constexpr int kRowTiles = kWarpN / 16, kColumns = kWarpM / 8;  // mma tiles of a warp
  static_assert(kRowTiles % 2 == 0 && kColumns % 4 == 0 && kColumns % kWarpsK == 0);

  // Bytes of shared memory: a stage has a slice for each warp along K, weights first, scales last.
  template <class Kind>
  static constexpr int kRowBytesW = kBlockK / Kind::kCodes;
  template <class Kind>
  static constexpr int kScales = kBlockN * kRowBytesW<Kind> + kBlockM * kBlockK * Kind::kSizeX;  // where they begin
  template <class Kind>
  static constexpr int kSliceBytes = kScales<Kind> + (Kind::kBlocks ? kBlockK / kScaleK * kBlockN * 2 : 0);
  template <class Kind>
  static constexpr int kStageBytes = kWarpsK * kSliceBytes<Kind>;
};

// The swizzle of 16-byte chunks in a row of shared memory, by exclusive or, so that what is read at once lies in different banks:
// one chunk of 8 rows by ldmatrix, two of 4 rows of a 16-bit x.
template <int kRowBytes, bool kTwo>
__device__ __forceinline__ int swizzle(int row) {
  static_assert(kRowBytes == 64 || kRowBytes == 128 || kRowBytes == (kTwo ? 256 : 32));
  if constexpr (kRowBytes == 32) return row / 4 & 1;
  const int line = kRowBytes == 64 ? row / 2 : row;  // of 128 bytes
  return kTwo ? (line & (kRowBytes == 64 ? 1 : 3)) * 2 : line & (kRowBytes == 64 ? 3 : 7);
}

// Copies a block's k-tiles to its stages; each thread has fixed chunks of 16 bytes. What lies past M, N or `end` (of the block's
// k-split) becomes zeros.
template <class Kind, class T>
struct Loader {
  static constexpr int kRowBytesX = T::kBlockK * Kind::kSizeX, kRowBytesW = T::template kRowBytesW<Kind>;
  static constexpr int kChunksW = kRowBytesW / 16, kRowsW = T::kThreads / kChunksW;  // rows that all threads copy together
  static constexpr int kChunksX = kRowBytesX / 16, kRowsX = T::kThreads / kChunksX;
  static_assert(kRowsW % 8 == 0 && kRowsX % 8 == 0);  // the swizzle is the same for all of a thread's rows
  static_assert(kRowsW % T::kWarpN == 0 || T::kWarpN % kRowsW == 0);
  static_assert(T::kBlockN % kRowsW == 0 && T::kBlockM % kRowsX == 0);

  const uint8_t *weight, *x;
  uint32_t bytes_weight, bytes_x;  // of a row
  int left_weight, left_x;         // k from this thread's chunk of the next k-tile to the end
  int rows_n, rows_m;              // from this thread's first row on
  uint32_t to_weight, to_x;

  // Where blocks have scales: those of the next k-tile, and which of its chunks of 16 bytes this thread has.
  static constexpr int kChunksS = T::kBlockN / 8, kChunksOfScales = T::kBlockK / kScaleK * kChunksS;
  const uint16_t* scales;
  uint32_t to_scales;
  int64_t stride;
  int thread, left_n, left_k;

  __device__ Loader(const Params& a, uint32_t shared, int thread, int64_t n0, int64_t m0, int k, int end) {
    const RowwiseLinear& p = a.p;
    // Channel g · kChannels + i of a warp lies in row i · 8 + g, so that lanes g of a read meet neighbouring rows.
    const int row = thread / kChunksW, chunk = thread % kChunksW, n = channel(row);
    bytes_weight = static_cast<uint32_t>(p.K / Kind::kCodes);
    weight = static_cast<const uint8_t*>(p.weight) + (n0 + n) * bytes_weight + k / Kind::kCodes + chunk * 16;
    left_weight = end - k - chunk * (16 * Kind::kCodes);
    rows_n = static_cast<int>(min(p.N - n0, int64_t{T::kBlockN})) - n;
    to_weight = shared + row * kRowBytesW + (chunk ^ swizzle<kRowBytesW, false>(row)) * 16;
    const int m = thread / kChunksX, c = thread % kChunksX;
    bytes_x = static_cast<uint32_t>(p.K) * Kind::kSizeX;
    x = static_cast<const uint8_t*>(p.x) + ((m0 + m) * p.K + k) * Kind::kSizeX + c * 16;
    left_x = end - k - c * (16 / Kind::kSizeX);
    rows_m = static_cast<int>(min(p.M - m0, int64_t{T::kBlockM})) - m;
    to_x = shared + T::kBlockN * kRowBytesW + m * kRowBytesX + (c ^ swizzle<kRowBytesX, Kind::kWideX>(m)) * 16;
    if constexpr (Kind::kBlocks) {
      this->thread = thread, stride = a.stride, left_n = static_cast<int>(min(a.stride - n0, int64_t{T::kBlockN})),
      left_k = end - k;
      scales = static_cast<const uint16_t*>(a.scales) + k / kScaleK * stride + n0;
      to_scales = shared + T::template kScales<Kind>;
    }
  }

  // The output channel of a row of shared memory.
  __host__ __device__ static constexpr int channel(int row) {
    const int in_warp = row % T::kWarpN;
    return row - in_warp + in_warp % 8 * T::kChannels + in_warp / 8;
  }

  // Without branches, so that the copies can be issued between mma.
  __device__ __forceinline__ void copy(int stage) {
#pragma unroll
    for (int slice = 0; slice < T::kWarpsK; ++slice) {
      const uint32_t offset = stage * T::template kStageBytes<Kind> + slice * T::template kSliceBytes<Kind>;
      const int n = left_weight > slice * T::kBlockK ? rows_n : 0, m = left_x > slice * T::kBlockK ? rows_m : 0;
#pragma unroll
      for (int i = 0; i < T::kBlockN / kRowsW; ++i)
        copy16(to_weight + offset + i * T::kThreads * 16,
               weight + slice * kRowBytesW + uint64_t{bytes_weight} * channel(i * kRowsW), channel(i * kRowsW) < n);
#pragma unroll
      for (int i = 0; i < T::kBlockM / kRowsX; ++i)
        copy16(to_x + offset + i * T::kThreads * 16, x + slice * kRowBytesX + uint64_t{bytes_x} * (i * kRowsX), i * kRowsX < m);
    }
    if constexpr (Kind::kBlocks) copy_scales(stage);
    weight += T::kStageK / Kind::kCodes, left_weight -= T::kStageK;
    x += T::kStageK * Kind::kSizeX, left_x -= T::kStageK;
  }

  __device__ __forceinline__ void copy_scales(int stage) {
#pragma unroll
    for (int slice = 0; slice < T::kWarpsK; ++slice)
#pragma unroll
      for (int i = 0; i < kChunksOfScales; i += T::kThreads) {
        const int chunk = i + thread, n = chunk % kChunksS * 8, k = slice * T::kBlockK + chunk / kChunksS * kScaleK;
        const bool inside = n < left_n && k < left_k;
        if (chunk < kChunksOfScales)
          copy16(to_scales + stage * T::template kStageBytes<Kind> + slice * T::template kSliceBytes<Kind> + chunk * 16,
                 scales + (inside ? k / kScaleK * stride + n : 0), inside);
      }
    scales += T::kStageK / kScaleK * stride, left_k -= T::kStageK;
  }
};

template <class Value>
__device__ __forceinline__ uint32_t multiplied(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<Value, __half>, __half2, __nv_bfloat162>;
  return bits<uint32_t>(__hmul2(bits<Pair>(a), bits<Pair>(b)));
}

// A warp's operands, from a stage in shared memory to the tensor cores.
template <class Kind, class T>
struct Operands {
  static constexpr int kRowTiles = T::kRowTiles, kColumns = T::kColumns, kRowBytesX = T::kBlockK * Kind::kSizeX;
  static constexpr int kRowBytesW = T::template kRowBytesW<Kind>;
  static constexpr int kSteps = T::kBlockK / Kind::kDepth;                 // of an mma's depth in a stage
  static constexpr int kWordsX = Kind::kDirect || Kind::kWideX ? 2 : 1;    // of a lane, column and step of an mma's k
  static constexpr int kReadX = Kind::kWideX ? 1 : Kind::kDirect ? 2 : 4;  // columns of one read
  static_assert(kSteps % 2 == 0);

  uint32_t from_weight, from_x, from_scales;
  uint32_t scales[T::kChannels / 2];  // of neighbouring channels, of what was read last
  std::conditional_t<Kind::kTable, Table16, uint32_t> table;
  uint32_t weights[2][kRowTiles][4], packed[Kind::kDirect ? 1 : kRowTiles * 2], x[kColumns * kWordsX];

  __device__ Operands(const Params& a, uint32_t shared, int lane, int warp_n, int warp_m) {
    const int matrix = lane / 8, row = lane % 8, g = lane / 4, t = lane % 4;
    // Rows 0 … 7, then 8 … 15: of the lower and of the upper half of k, or of two row tiles.
    const int row_n = warp_n + row + (Kind::kDirect ? matrix % 2 : matrix) * 8, chunk_n = Kind::kDirect ? matrix / 2 : 0;
    from_weight = shared + row_n * kRowBytesW + (chunk_n ^ swizzle<kRowBytesW, false>(row)) * 16;
    const int row_m = warp_m + (Kind::kWideX ? g : row + (Kind::kDirect ? matrix / 2 : matrix) * 8);
    const int chunk_m = Kind::kTable ? t : Kind::kWideX ? t / 2 : Kind::kDirect ? matrix % 2 : 0;
    from_x = shared + T::kBlockN * kRowBytesW + row_m * kRowBytesX + (chunk_m ^ swizzle<kRowBytesX, Kind::kWideX>(row_m)) * 16 +
             (Kind::kWideX && !Kind::kTable ? t % 2 * 8 : 0);
    // A lane's eight k of 4-bit codes lie in one of two blocks.
    const int row_s = Kind::kTable ? t / 2 : 0;
    if constexpr (Kind::kBlocks)
      from_scales = shared + T::template kScales<Kind> + (row_s * T::kBlockN + warp_n + g * T::kChannels) * 2;
    if constexpr (Kind::kTable) table = *a.table;
  }

  // Reads for the step that starts here in its stage; rows are aligned, so that the exclusive or reaches their chunks alone.
  __device__ __forceinline__ void read_weights(int step, uint32_t offset) {
    const uint32_t from = (from_weight ^ step * Kind::kDepth / Kind::kCodes) + offset;
    if constexpr (Kind::kDirect) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) read_matrices(weights[step % 2][r], from + r * 16 * kRowBytesW);
    } else if (step % Kind::kCodes == 0) {  // of 4 bits two steps' at once
#pragma unroll
      for (int r = 0; r < kRowTiles; r += 2) read_matrices(packed + r * 2, from + r * 16 * kRowBytesW);
    }
    if constexpr (Kind::kBlocks)
      if (step % Kind::kCodes == 0) read_shared(scales, from_scales + offset + step * (T::kBlockN * 2));
  }

  __device__ __forceinline__ void widen(int r, int step) {
    if constexpr (!Kind::kDirect) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint2 v;
        if constexpr (Kind::kTable) {
          uint32_t pairs[4];  // of which the other two are never made
          table.pairs(packed[2 * r + half], pairs);
          v = {pairs[step % 2 * 2], pairs[step % 2 * 2 + 1]};
        } else {
          v = widened<typename Kind::Value, Kind::kW>(packed[2 * r + half]);
        }
        if constexpr (Kind::kBlocks) {
          const uint32_t scale = __byte_perm(scales[r], 0, half ? 0x3232 : 0x1010);
          v = {multiplied<typename Kind::Value>(v.x, scale), multiplied<typename Kind::Value>(v.y, scale)};
        }
        weights[step % 2][r][half] = v.x, weights[step % 2][r][2 + half] = v.y;
      }
    }
  }

  // Reads columns j … j + kReadX - 1.
  __device__ __forceinline__ void read_x(int j, int step, uint32_t offset) {
    // With 4-bit codes a lane's eight k are neighbours: the first four, then the others.
    const int in_row = Kind::kTable ? step / 2 * 64 + step % 2 * 8 : step * Kind::kDepth * Kind::kSizeX;
    const uint32_t from = (from_x ^ in_row) + offset + j * 8 * kRowBytesX;
    if constexpr (Kind::kWideX)
      read_shared(reinterpret_cast<uint32_t (&)[2]>(x[2 * j]), from);
    else
      read_matrices(x + j * kWordsX, from);
  }

  __device__ __forceinline__ void multiply(typename Kind::Sum (&sum)[kRowTiles][kColumns][4], int j, int step) const {
    uint2 v{};
    if constexpr (kWordsX == 1) v = widened<typename Kind::Value, Kind::kX>(x[j]);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const uint32_t (&w)[4] = weights[step % 2][r];
      if constexpr (Kind::kInt8)
        mma(sum[r][j], w, x[2 * j], x[2 * j + 1]);
      else if constexpr (Kind::kDirect)
        mma_float8<Kind::kW>(sum[r][j], w, x + 2 * j);
      else if constexpr (Kind::kWideX)
        mma<typename Kind::Value>(sum[r][j], w, x[2 * j], x[2 * j + 1]);
      else
        mma<typename Kind::Value>(sum[r][j], w, v.x, v.y);
    }
  }
};

// A row's results for neighbouring channels, of which the first `count` exist; by vectors where all do and lie well.
template <int kChannels, class Sum>
__device__ __forceinline__ void store_channels(const RowwiseLinear& p, int64_t i, const Sum (&sum)[kChannels], float row_scale,
                                               const Channel (&channels)[kChannels], int count, bool vector) {
  uint32_t y[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) y[c] = __float_as_uint(scaled(sum[c], row_scale, channels[c]));
  if (p.output == Element::int32 || p.output == Element::fp32) {
    if constexpr (std::is_same_v<Sum, int>)
      if (p.output == Element::int32)
#pragma unroll
        for (int c = 0; c < kChannels; ++c) y[c] = static_cast<uint32_t>(sum[c]);
    uint32_t* const to = static_cast<uint32_t*>(p.y) + i;
    if (vector) {
#pragma unroll
      for (int c = 0; c < kChannels; c += 4) *reinterpret_cast<uint4*>(to + c) = make_uint4(y[c], y[c + 1], y[c + 2], y[c + 3]);
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        if (c < count) to[c] = y[c];
    }
  } else {
    uint32_t pair[kChannels / 2];
#pragma unroll
    for (int c = 0; c < kChannels; c += 2) {
      const float low = __uint_as_float(y[c]), high = __uint_as_float(y[c + 1]);
      pair[c / 2] = p.output == Element::fp16 ? rounded_pair<__half>(low, high) : rounded_pair<__nv_bfloat16>(low, high);
    }
    uint16_t* const to = static_cast<uint16_t*>(p.y) + i;
    if (vector) {
      if constexpr (kChannels == 8)
        *reinterpret_cast<uint4*>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
      else
        *reinterpret_cast<uint2*>(to) = make_uint2(pair[0], pair[1]);
    } else {
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        if (c < count) to[c] = static_cast<uint16_t>(pair[c / 2] >> c % 2 * 16);
    }
  }
}

// Split-K reduction over a block's warps along K, in the order of k; each of them keeps its share of the columns.
template <class T, class Sum, int kOwn>
__device__ __forceinline__ void reduce_warps(const Sum (&sum)[T::kRowTiles][T::kColumns][4], Sum (&own)[T::kRowTiles][kOwn][4],
                                             uint8_t* memory, int lane, int place, int slice) {
  using Four = std::conditional_t<std::is_same_v<Sum, int>, int4, float4>;
  const auto at = [&](int slice, int r, int j) {
    const int warp = slice * T::kWarpsN * T::kWarpsM + place;
    return reinterpret_cast<Four*>(memory) + ((warp * T::kRowTiles + r) * T::kColumns + j) * 32 + lane;
  };
  __syncthreads();
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < T::kColumns; ++j) *at(slice, r, j) = {sum[r][j][0], sum[r][j][1], sum[r][j][2], sum[r][j][3]};
  __syncthreads();
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r)
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      Four v = *at(0, r, slice * kOwn + j);
#pragma unroll
      for (int i = 1; i < T::kWarpsK; ++i) {
        const Four next = *at(i, r, slice * kOwn + j);
        v.x += next.x, v.y += next.y, v.z += next.z, v.w += next.w;
      }
      own[r][j][0] = v.x, own[r][j][1] = v.y, own[r][j][2] = v.z, own[r][j][3] = v.w;
    }
}

// A warp's results: lane (g, t) has channels g · kChannels + [0, kChannels) of rows 8 j + 2 t and 8 j + 2 t + 1.
template <class T, class Sum, int kColumns>
__device__ __forceinline__ void store(const Params& a, const Sum (&sum)[T::kRowTiles][kColumns][4], int lane, int64_t n0,
                                      int64_t m0) {
  constexpr int kChannels = T::kChannels;
  const int64_t n = n0 + lane / 4 * kChannels;
  const int count = static_cast<int>(min(int64_t{kChannels}, a.p.N - n));
  if (count <= 0) return;
  Channel channels[kChannels];
#pragma unroll
  for (int i = 0; i < kChannels; ++i) channels[i] = i < count ? load_channel(a.p, n + i) : Channel{};
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int64_t m = m0 + 8 * j + lane % 4 * 2 + e;
      if (m >= a.p.M) continue;
      Sum of_row[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) of_row[c] = sum[c / 2][j][e + c % 2 * 2];
      store_channels(a.p, m * a.p.N + n, of_row, load_row_scale(a.p, m), channels, count, a.vector_y);
    }
}

// A block's outputs, from channel n0 and row m0 on.
template <class Kind, class T>
__device__ __forceinline__ void compute(const Params& a, int64_t n0, int64_t m0) {
  constexpr int kRowTiles = T::kRowTiles, kColumns = T::kColumns, kStages = T::kStages, kStage = T::template kStageBytes<Kind>;
  using Source = Operands<Kind, T>;
  using Sum = typename Kind::Sum;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int place = warp % (T::kWarpsN * T::kWarpsM), slice = warp / (T::kWarpsN * T::kWarpsM);
  const int warp_n = place % T::kWarpsN * T::kWarpN, warp_m = place / T::kWarpsN * T::kWarpM;
  const int k_begin = static_cast<int>(blockIdx.y) * a.steps * T::kStageK;
  const int k_end = min(static_cast<int>(a.p.K), k_begin + a.steps * T::kStageK);
  const int steps = (k_end - k_begin + T::kStageK - 1) / T::kStageK;

  Loader<Kind, T> loader(a, shared, thread, n0, m0, k_begin, k_end);
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    loader.copy(i);
    commit_copies();
  }

  Sum sum[kRowTiles][kColumns][4] = {};
  Source source(a, shared + slice * T::template kSliceBytes<Kind>, lane, warp_n, warp_m);
  wait_copies<kStages - 1>();
  __syncthreads();
  source.read_weights(0, 0);
#pragma unroll
  for (int j = 0; j < kColumns; j += Source::kReadX) source.read_x(j, 0, 0);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) source.widen(r, 0);

  int stage = 0;
  for (int i = 0; i < steps; ++i) {
    const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
    for (int step = 0; step < Source::kSteps; ++step) {
      const bool last = step == Source::kSteps - 1;
      const int next = last ? 0 : step + 1;
      const uint32_t offset = (last ? next_stage : stage) * kStage;
      if (last) {
        wait_copies<kStages - 2>();
        __syncthreads();
        loader.copy(stage);
        commit_copies();
      }
      source.read_weights(next, offset);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        source.multiply(sum, j, step);
        if (j % Source::kReadX == Source::kReadX - 1) source.read_x(j - j % Source::kReadX, next, offset);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r)
          if ((r + 1) * kColumns / kRowTiles == j + 1) source.widen(r, next);
      }
    }
    stage = next_stage;
  }
  wait_copies<0>();

  if constexpr (T::kWarpsK > 1) {
    constexpr int kOwn = kColumns / T::kWarpsK;
    Sum own[kRowTiles][kOwn][4];
    reduce_warps<T>(sum, own, memory, lane, place, slice);
    store<T>(a, own, lane, n0 + warp_n, m0 + warp_m + slice * kOwn * 8);
  } else {
    if (gridDim.y > 1 && !reduce_splits<T::kThreads>(sum, static_cast<Sum*>(a.partials), a.counters)) return;
    store<T>(a, sum, lane, n0 + warp_n, m0 + warp_m);
  }
}

template <class Kind, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) rowwise_mma_kernel(const __grid_constant__ Params a) {
  int64_t n0, m0;
  tile_origin<T>(static_cast<int>(blockIdx.x), a.tiles_n, a.tiles_m, n0, m0);
  compute<Kind, T>(a, n0, m0);
}

// A block's place along z is its tile of rows, of one expert's. Rows behind the last become zero.
template <class Kind, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) rowwise_mma_of_experts(const __grid_constant__ Params a) {
  const RowwiseLinear& p = a.p;
  const int experts = static_cast<int>(p.experts);
  const ExpertRows rows = rows_of_tile(p.ends, experts, static_cast<int>(p.M), T::kBlockM, blockIdx.z);
  const int64_t n0 = int64_t{blockIdx.x} * T::kBlockN;
  if (rows.begin == rows.end) return;
  if (rows.expert == experts) {
    for (int i = threadIdx.x; i < (rows.end - rows.begin) * T::kBlockN; i += T::kThreads)
      if (const int64_t n = n0 + i % T::kBlockN; n < p.N) clear(p.y, (rows.begin + i / T::kBlockN) * p.N + n, p.output);
    return;
  }
  Params own = a;
  own.p = of_expert(p, rows.expert);
  own.p.M = rows.end;
  if (a.scales) own.scales = static_cast<const uint16_t*>(a.scales) + rows.expert * a.groups * a.stride;
  compute<Kind, T>(own, n0, rows.begin);
}

}  // namespace aoext::cuda::rowwise_mma
