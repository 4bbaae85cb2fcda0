// Products with 8-bit weights (rowwise.h), and with a scale a block of weights of 8 or 4 bits (blocks.h), for few rows of x,
// limited by reading the weight.
//
// Memory. A k-tile of 16 output channels by 128 bytes is 2 KB of weights, for one warp, four 16-byte copies a lane. Lane
// (g = lane / 4, t = lane % 4) copies bytes 16t..16t+15 of both halves of output channels 2g and 2g + 1, which are rows g and
// g + 8 of mma's A operand; that permutes k within a k-tile, for x as well. A warp takes one such tile and a k-split of its
// k-tiles through a ring of stages of its own in shared memory, where every lane reads what it copied itself, so that no warp
// waits for another: 64 to 160 KB a multiprocessor are in flight all the time, more than registers could hold. few_rows.cuh has
// the loop, and adds the partial sums of warps and blocks.
//
// Operands. int8 by int8 is multiplied as such. Everything else is multiplied in fp16 or bf16, which hold every 8-bit number:
// weights, and an 8-bit x, are converted in registers. A k-tile's sum starts at zero and is added in float32, so that no long sum
// is truncated by the tensor cores.
//
// Where x is to be quantised, every block does so for itself while its first weights are in flight: each row belongs to a team of
// warps, which read it twice, the second time from L1. That is more arithmetic than an earlier kernel would need, 8 instructions
// a value and block, but it saves a launch.
//
// What differs between weight formats is a loader's, RowsOf<W> here and BlocksOf<W, kGranule> in blocks_decode.cuh:
//
//   struct Loader {
//     using Linear;                       // the problem
//     static constexpr Element kType;     // of the weight
//     static constexpr int kTileK;        // k of 128 bytes
//     static constexpr bool kBlocks;      // whether scales come through the ring, too
//     static int k_tile_bytes(p);         // of the ring
//     static constexpr int kTableBytes;   // of shared memory, for what all warps read
//     static float row_scale<T>(p, m);    // the factor of the sums of a row of x
//     struct Lane {                       // what a lane keeps; empty without kBlocks
//       void start<T>(p, table, lane, warp, warps);  // before the first barrier of all threads
//       void aim(p, row, next);           // at output channels 2g and 2g + 1
//       void copy(p, to, k_tile, g, t);   // the scales of a k-tile to the ring
//       auto read<T>(p, from, k_tile, h, g, t) const;       // the scales of half h: `sum` of both rows, and what `pairs` wants
//       void pairs<T>(v, j, scales, row, pairs) const;      // eight k as mma multiplies them: of a lane's 16 bytes those that
//                                                           // are multiplied by piece j of x
//     };
//   };
//
// The kernel's parts: Copies brings stages of the weight to the ring, StagedX and QuantizedX bring x to shared memory, Sums
// multiplies, and Kernel gives them to few_rows.cuh's loop.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/experts_few_rows.cuh"
#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/rowwise.cuh"

namespace aoext::cuda::rowwise_decode {

constexpr int kRowBytes = 128;  // of a k-tile and output channel
constexpr int kTileN = 16;      // output channels of a tile
// For experts: rows of x of a tile; the depth of its kernels; and threads, of 144 registers, since they hold where an expert's
// lie.
constexpr int kExpertRows = 8, kExpertDepth = 4, kExpertThreads = 448;

constexpr int kWeightBytes = kTileN * kRowBytes;  // of a k-tile

// Weights of 8 bits with a scale for each output channel, which the epilogue applies.
template <Element W>
struct RowsOf {
  using Linear = RowwiseLinear;
  static constexpr Element kType = W;
  static constexpr int kTileK = 128;
  static constexpr bool kBlocks = false;
  static constexpr int kTableBytes = 0;
  struct Lane {};

  static __device__ __forceinline__ int k_tile_bytes(const RowwiseLinear&) { return kWeightBytes; }

  template <class T>
  static __device__ __forceinline__ float row_scale(const RowwiseLinear& p, int m) {
    return load_row_scale(p, m);
  }
};

// What a launch needs; every division in the kernel is by one of these, or a multiplication by its magic number.
template <class Linear>
struct Params {
  Linear linear;
  int M;
  uint32_t m_magic;   // ceil(2^20 / M)
  int tile_groups;    // ceil(N / output channels of a block)
  int k_tiles;        // ceil(K / kTileK)
  int split_k_tiles;  // of the k-split of a block in its cluster
  int chunk_k_tiles;  // k-tiles whose x is in shared memory at a time
  int chunks;         // of a k-split
  int warp_stages;    // of a warp in a chunk, a k-tile each
  int ahead;          // bytes of each output channel that are prefetched into L2 while the last kernel ends
  int buffer_stride;  // words to the second buffer of partial sums, 0 where a block has one group of tiles
  int cluster_log2;
};

// What mma's operands are made of: an x of 8 bits, one that is quantised to 8 bits here, or one of 16.
enum class X { eight, quantized, sixteen };

// What an instance is compiled for. T: what mma multiplies, int8_t, __half or __nv_bfloat16. Loader: of the weight, whose type an
// 8-bit x has as well. Octets: of rows of x. Depth: stages of a ring, a k-tile each.
template <class MmaType, class WeightLoader, X kOfX, int Octets, int Depth>
struct Instance {
  using T = MmaType;
  using Loader = WeightLoader;
  using Linear = typename Loader::Linear;
  static constexpr X kX = kOfX;
  static constexpr int kOctets = Octets, kDepth = Depth, kTileK = Loader::kTileK;
  static constexpr Element W = Loader::kType;
  static constexpr bool kInteger = std::is_same_v<T, int8_t>, kBlocks = Loader::kBlocks, kX8 = kX != X::sixteen;
  using Sum = std::conditional_t<kInteger, int, float>;
  // Bytes of a row of x in half of a k-tile, and in all of it; of a half, kPieces times 16 a lane where x has 16 bits.
  static constexpr int kHalfX = kTileK / 2 * (kX8 ? 1 : 2), kRowX = 2 * kHalfX, kPieces = kTileK / 64;
  // Independent accumulators, so that one mma does not wait for another; as many as registers allow.
  static constexpr int kChains = Octets == 1 && !kInteger ? 4 : kX8 ? 2 : 1;

  // Where 16 bytes of a row of x lie. The lanes of neighbouring rows read different halves of 128 bytes, which is why the halves
  // of every other row are swapped.
  static __device__ __forceinline__ int place(int m, int piece) {
    if constexpr (kPieces == 4)
      return (piece ^ (m & 1) * 2 ^ (piece >> 3 & 1)) * 16;
    else
      return (piece ^ (m & 1) * (kX8 ? 4 : 1)) * 16;
  }
  static __device__ __forceinline__ int row_bytes(const Linear& linear) {
    return static_cast<int>(linear.K) / (kTileK / kRowBytes);
  }
};

// Addresses in shared memory, behind the loader's table, in their order.
template <class I>
struct Shared {
  uint32_t x;         // [k-tile of the chunk][m] of kRowX
  uint32_t ring;      // of this warp: weights of a k-tile, then scales
  uint32_t barriers;  // two
  float* row_scales;
  Channel* channels;  // two tables of a group's
  typename I::Sum* partial;

  __device__ __forceinline__ Shared(const Params<typename I::Linear>& p, const Position& at, uint8_t* smem, int k_tile_bytes) {
    const int x_bytes = p.chunk_k_tiles * p.M * I::kRowX;
    x = shared_address(smem) + I::Loader::kTableBytes;
    ring = x + x_bytes + at.warp * I::kDepth * k_tile_bytes;
    uint8_t* const beyond = smem + I::Loader::kTableBytes + x_bytes + at.warps * I::kDepth * k_tile_bytes;
    barriers = shared_address(beyond);
    row_scales = reinterpret_cast<float*>(beyond + 16);
    channels = reinterpret_cast<Channel*>(row_scales + I::kOctets * 8);
    partial = reinterpret_cast<typename I::Sum*>(channels + 2 * at.tiles * kTileN);
  }
};

// The lane's first output channel of a group of tiles, and the one beside it; past the last, the last.
template <class Linear>
struct RowPair {
  int row, next;

  __device__ __forceinline__ RowPair(const Linear& linear, const Position& at, int group) {
    const int last = static_cast<int>(linear.N) - 1;
    row = min((group * at.tiles + at.tile) * kTileN + 2 * at.g, last), next = min(row + 1, last);
  }
};

// Copies a warp's weights, and scales that come by blocks, to its ring, a k-tile at a time. For output channels past the last,
// the last is read, and nothing stored; k past K are zeros.
template <class I>
struct Copies {
  const Params<typename I::Linear>& p;
  const Position& at;
  const uint32_t ring;
  const int k_tile_bytes, row_bytes;
  Cursor<1> cursor;
  const uint8_t* weight;  // of the lane's output channel 2g
  uint32_t to_next;       // bytes to its row 2g + 1
  typename I::Loader::Lane scales;

  __device__ __forceinline__ Copies(const Params<typename I::Linear>& p, const Position& at, uint32_t ring, int k_tile_bytes)
      : p(p), at(at), ring(ring), k_tile_bytes(k_tile_bytes), row_bytes(I::row_bytes(p.linear)) {
    cursor.start(p, at);
    aim();
  }

  __device__ __forceinline__ void aim() {
    const RowPair rows(p.linear, at, cursor.group);
    weight = static_cast<const uint8_t*>(p.linear.weight) + rows.row * (p.linear.K / (I::kTileK / kRowBytes)) + at.t * 16;
    to_next = rows.row < rows.next ? row_bytes : 0;
    if constexpr (I::kBlocks) scales.aim(p.linear, rows.row, rows.next);
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (cursor.is_inside(p)) {
      const uint32_t place = ring + slot * k_tile_bytes, to = place + at.lane * 16;
      const int byte = cursor.k_tile * kRowBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = byte + h * 64 + at.t * 16 < row_bytes;
        const uint8_t* from = weight + (inside ? byte + h * 64 : 0);
        copy16(to + h * 1024, from, inside);
        copy16(to + h * 1024 + 512, from + to_next, inside);
      }
      if constexpr (I::kBlocks) scales.copy(p.linear, place + kWeightBytes, cursor.k_tile, at.g, at.t);
    }
    commit_copies();
    cursor.advance(p, at, [&] { aim(); });
  }
};

// Brings a chunk of x to shared memory. Four lanes take one (k-tile, m) at a time.
template <class I>
__device__ __forceinline__ void copy_x(const Params<typename I::Linear>& p, const Position& at, uint32_t to, int begin, int end) {
  const int count = (end - begin) * p.M, K = static_cast<int>(p.linear.K);
#pragma unroll 1
  for (int item = at.warp * 8 + at.g; item < count; item += at.warps * 8) {
    const int k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
    const auto* from =
        static_cast<const uint8_t*>(p.linear.x) + (m * p.linear.K + (begin + k_tile) * I::kTileK) * (I::kX8 ? 1 : 2);
#pragma unroll
    for (int i = 0; i < I::kRowX / 64; ++i) {
      const int piece = i * 4 + at.t;
      const bool inside = (begin + k_tile) * I::kTileK + piece * (I::kX8 ? 16 : 8) < K;
      copy16_cached(to + item * I::kRowX + I::place(m, piece), inside ? from + piece * 16 : from, inside);
    }
  }
}

// Quantises x of the block's k-split, all of which is in shared memory. A row belongs to a team of warps, of which there are no
// fewer than rows. A row's first vectors are loaded before the ring is, behind which they would come late.
template <class I>
struct QuantizedX {
  static constexpr int kVectors = 4;  // of 16 bytes, that a thread has in flight

  const Params<typename I::Linear>& p;
  const Position& at;
  const int team, in_team, m;  // its warps, this one's number and its row
  const int own, step;         // of a row's threads
  uint4 vectors[kVectors];

  __device__ __forceinline__ QuantizedX(const Params<typename I::Linear>& p, const Position& at)
      : p(p),
        at(at),
        team(at.warps * p.m_magic >> 20),
        in_team(at.warp * p.m_magic >> 20),
        m(at.warp - in_team * p.M),
        own(in_team * 32 + at.lane),
        step(team * 32) {}

  __device__ __forceinline__ void load(int base) {
    const int bytes = static_cast<int>(p.linear.K) * (p.linear.type == Element::fp32 ? 4 : 2);
    const int count = in_team < team ? bytes / 16 : 0;
    const auto* row = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p.linear.x) + m * int64_t{bytes});
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = base + i * step < count ? row[base + i * step] : uint4{};
  }

  template <class S>
  __device__ __forceinline__ uint32_t own_absmax() {
    using Vector = quantize::Words<4>;
    uint32_t absmax = 0;
#pragma unroll 1
    for (int base = own;;) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) absmax = quantize::absmax_of<S>(bits<Vector>(vectors[i]), absmax);
      base += kVectors * step;
      if (base >= static_cast<int>(p.linear.K) / int{16 / sizeof(S)}) break;
      load(base);
    }
    return absmax;
  }

  template <class S>
  __device__ __forceinline__ void store(const Shared<I>& shared) {
    constexpr int kCount = 16 / sizeof(S), kTileK = I::kTileK;
    auto* const absmax_of_warps = reinterpret_cast<uint32_t*>(shared.partial) + m * team;  // before sums are there
    const uint32_t absmax = __reduce_max_sync(0xffffffff, own_absmax<S>());
    if (at.lane == 0 && in_team < team) absmax_of_warps[in_team] = absmax;
    __syncthreads();
    if (in_team >= team) return;
    const quantize::Row<I::W> quantized(__reduce_max_sync(0xffffffff, at.lane < team ? absmax_of_warps[at.lane] : 0));
    if (own == 0) shared.row_scales[m] = quantized.stored_scale();
    const S* const row = static_cast<const S*>(p.linear.x) + m * p.linear.K;
#pragma unroll 1
    for (int i = own; i < (at.split_end - at.split_begin) * (kTileK / 16); i += step) {
      const int k = at.split_begin * kTileK + i * 16, k_tile = i / (kTileK / 16);
      quantize::Words<4> codes{};
#pragma unroll
      for (int j = 0; j < 16; j += kCount)
        if (k < static_cast<int>(p.linear.K)) {
          const auto some = quantized.template codes<S, kCount>(quantize::load_piece<S, kCount>(row, (k + j) / kCount));
#pragma unroll
          for (int word = 0; word < kCount / 4; ++word) codes.w[j / 4 + word] = some.w[word];
        }
      store_shared_16(shared.x + (k_tile * p.M + m) * I::kRowX + I::place(m, i % (kTileK / 16)),
                      {codes.w[0], codes.w[1], codes.w[2], codes.w[3]});
    }
  }

  __device__ __forceinline__ void store_any(const Shared<I>& shared) {
    switch (p.linear.type) {
      case Element::bf16: store<__nv_bfloat16>(shared); break;
      case Element::fp16: store<__half>(shared); break;
      default: store<float>(shared);
    }
  }
};

// The sums of a warp's output channels, in the order of mma's C.
template <class I>
struct Sums {
  using T = typename I::T;
  using Sum = typename I::Sum;
  static constexpr int kOctets = I::kOctets, kChains = I::kChains;
  static constexpr Element W = I::W;

  const Params<typename I::Linear>& p;
  const Position& at;
  const uint32_t ring;
  const int k_tile_bytes;
  typename I::Loader::Lane scales;
  Sum y[kOctets][4];
  uint32_t column[kOctets];  // this lane's row of x as a column of B

  __device__ __forceinline__ Sums(const Params<typename I::Linear>& p, const Position& at, const Shared<I>& from,
                                  int k_tile_bytes)
      : p(p), at(at), ring(from.ring), k_tile_bytes(k_tile_bytes) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int m = min(o * 8 + at.g, p.M - 1);
      column[o] = from.x + m * I::kRowX + I::place(m, I::kX8 ? at.t : I::kPieces * at.t);
    }
  }

  __device__ __forceinline__ void begin(int group) {
    if constexpr (I::kBlocks) {
      const RowPair rows(p.linear, at, group);
      scales.aim(p.linear, rows.row, rows.next);
    }
#pragma unroll
    for (int i = 0; i < kOctets * 4; ++i) y[i / 4][i % 4] = 0;
  }

  // Half h of a k-tile, of rows 2g and 2g + 1, by x: integers.
  __device__ __forceinline__ void multiply_integers(const uint4& v, const uint4& w, int h, uint32_t x,
                                                    Sum (&acc)[kOctets][4]) const {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const uint4 b = load_shared_16((column[o] + x) ^ h * 64);
      mma(acc[o], {v.x, w.x, v.y, w.y}, b.x, b.y);
      mma(acc[o], {v.z, w.z, v.w, w.w}, b.z, b.w);
    }
  }

  // Numbers of 16 bits, which 8 bits are converted to.
  __device__ __forceinline__ void multiply_widened(const uint4& v, const uint4& w, int h, uint32_t x,
                                                   Sum (&acc)[kChains][kOctets][4]) const {
    uint4 b[kOctets][2];  // of 16 k: eight and eight
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if constexpr (I::kX8) {
        const uint4 q = load_shared_16((column[o] + x) ^ h * 64);
        const uint2 b0 = widened<T, W>(q.x), b1 = widened<T, W>(q.y), b2 = widened<T, W>(q.z), b3 = widened<T, W>(q.w);
        b[o][0] = {b0.x, b0.y, b1.x, b1.y}, b[o][1] = {b2.x, b2.y, b3.x, b3.y};
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) b[o][j] = load_shared_16(((column[o] + x) ^ j * 16) + h * 128);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint2 a0 = widened<T, W>(j ? v.z : v.x), a1 = widened<T, W>(j ? w.z : w.x);
      const uint2 a2 = widened<T, W>(j ? v.w : v.y), a3 = widened<T, W>(j ? w.w : w.y);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) mma<T>(acc[(2 * h + j) % kChains][o], {a0.x, a1.x, a0.y, a1.y}, b[o][j].x, b[o][j].y);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) mma<T>(acc[(2 * h + j) % kChains][o], {a2.x, a3.x, a2.y, a3.y}, b[o][j].z, b[o][j].w);
    }
  }

  // Weights with scales by blocks; their half's scale is applied here.
  template <class Scales>
  __device__ __forceinline__ void multiply_blocks(const uint4& v, const uint4& w, int h, uint32_t x, const Scales& of_half,
                                                  Sum (&sum)[kOctets][4]) {
#pragma unroll
    for (int j = 0; j < I::kPieces; ++j) {
      uint4 b[kOctets];
#pragma unroll
      for (int o = 0; o < kOctets; ++o) b[o] = load_shared_16(((column[o] + x) ^ j * 16) + h * I::kHalfX);
      uint32_t upper[4], lower[4];
      scales.template pairs<T>(v, j, of_half, 0, upper);
      scales.template pairs<T>(w, j, of_half, 1, lower);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) mma<T>(sum[o], {upper[0], lower[0], upper[1], lower[1]}, b[o].x, b[o].y);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) mma<T>(sum[o], {upper[2], lower[2], upper[3], lower[3]}, b[o].z, b[o].w);
    }
#pragma unroll
    for (int i = 0; i < kOctets * 4; ++i) {
      y[i / 4][i % 4] = fmaf(sum[i / 4][i % 4], i % 4 < 2 ? of_half.sum[0] : of_half.sum[1], y[i / 4][i % 4]);
      sum[i / 4][i % 4] = 0;
    }
  }

  // A k-tile of the chunk that begins at first_k_tile.
  __device__ __forceinline__ void multiply(int slot, int k_tile, int first_k_tile) {
    const uint32_t place = ring + slot * k_tile_bytes, from = place + at.lane * 16, x = k_tile * p.M * I::kRowX;
    Sum acc[kChains][kOctets][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 v = load_shared_16(from + h * 1024), w = load_shared_16(from + h * 1024 + 512);  // rows 2g and 2g + 1
      if constexpr (I::kBlocks) {
        const auto of_half = scales.template read<T>(p.linear, place + kWeightBytes, first_k_tile + k_tile, h, at.g, at.t);
        multiply_blocks(v, w, h, x, of_half, acc[h % kChains]);
      } else if constexpr (I::kInteger) {
        multiply_integers(v, w, h, x, acc[h]);
      } else {
        multiply_widened(v, w, h, x, acc);
      }
    }
#pragma unroll
    for (int i = 0; i < kOctets * 4 && !I::kBlocks; ++i) {
      Sum sum = acc[0][i / 4][i % 4];
      if constexpr (kChains > 1) sum += acc[1][i / 4][i % 4];
      if constexpr (kChains > 2) sum += acc[2][i / 4][i % 4] + acc[3][i / 4][i % 4];
      y[i / 4][i % 4] += sum;
    }
  }
};

// What few_rows.cuh's loop asks for.
template <class I>
struct Kernel {
  using Linear = typename I::Linear;
  using Sum = typename I::Sum;
  static constexpr int kDepth = I::kDepth;

  const Params<Linear>& p;
  const Position& at;
  const Shared<I>& shared;
  const SplitKReduction<Sum>& reduction;
  Copies<I>& copies;
  Sums<I> sums;
  RawChannel channel;  // whose scale and bias this thread brings: loaded as a turn begins, in shared memory as it ends
  int slot = 0;        // of the ring, that is multiplied next

  __device__ __forceinline__ int thread() const { return at.warp * 32 + at.lane; }
  __device__ __forceinline__ int group_rows() const { return at.tiles * kTileN; }  // fewer than threads

  __device__ __forceinline__ void begin(int group) {
    channel = {};
    const int64_t n = static_cast<int64_t>(group) * group_rows() + thread();
    if (thread() < group_rows() && n < p.linear.N) channel = fetch_channel(p.linear, n);
    sums.begin(group);
  }

  __device__ __forceinline__ void stage_x(int begin, int end, bool first) {
    if (first) {  // it was asked for before the ring was
      wait_copies<kDepth>();
      return;
    }
    if (I::kX != X::quantized) copy_x<I>(p, at, shared.x, begin, end);
    wait_all_copies();
  }

  __device__ __forceinline__ void multiply(int /*group*/, int begin, int end, int k_tile) {
    wait_copies<kDepth - 1>();
    if constexpr (I::kBlocks) __syncwarp();  // a lane reads scales that others copied
    if (begin + k_tile < end) sums.multiply(slot, k_tile, begin);
    if constexpr (I::kBlocks) __syncwarp();
    copies.fetch(slot);
    slot = slot + 1 == kDepth ? 0 : slot + 1;
  }

  __device__ __forceinline__ void finish(int turn) {
    if (thread() < group_rows()) shared.channels[(turn & 1) * group_rows() + thread()] = channel_of(p.linear, channel);
    reduction.put(turn, at.tile, at.k_split, sums.y);
  }

  __device__ __forceinline__ void store(int turn, int tile, int m, Sum sum) const {
    const int in_group = tile * kTileN + (at.lane & 15);
    const int64_t n = static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * group_rows() + in_group;
    if (n < p.linear.N)
      store_output(p.linear, m, n, sum, shared.row_scales[m], shared.channels[(turn & 1) * group_rows() + in_group]);
  }
};

// What all blocks of a kernel compute.
template <class I>
__device__ __forceinline__ void run(const Params<typename I::Linear>& p) {
  using T = typename I::T;
  using Loader = typename I::Loader;
  extern __shared__ __align__(128) uint8_t smem[];
  const Position at(p, 1);
  const int k_tile_bytes = Loader::k_tile_bytes(p.linear);
  const Shared<I> shared(p, at, smem, k_tile_bytes);
  const SplitKReduction<typename I::Sum> reduction(p, at, shared.partial, shared.barriers);
  Copies<I> copies(p, at, shared.ring, k_tile_bytes);
  const int64_t first_row = static_cast<int64_t>(copies.cursor.group * at.tiles + at.tile) * kTileN;
  prefetch_rows(p, at, p.linear.weight, first_row, kTileN, p.linear.N, copies.row_bytes, kRowBytes);
  wait_for_last_kernel();
  start_next_kernel();
  QuantizedX<I> quantized(p, at);
  if constexpr (I::kX == X::quantized)
    quantized.load(quantized.own);
  else
    copy_x<I>(p, at, shared.x, at.split_begin, min(at.split_begin + p.chunk_k_tiles, at.split_end));
  commit_copies();
#pragma unroll 1
  for (int d = 0; d < I::kDepth; ++d) copies.fetch(d);
  Kernel<I> kernel{p, at, shared, reduction, copies, Sums<I>(p, at, shared, k_tile_bytes), {}};
  if constexpr (I::kBlocks) kernel.sums.scales.template start<T>(p.linear, shared_address(smem), at.lane, at.warp, at.warps);
  reduction.start();
  if constexpr (I::kX == X::quantized) {
    quantized.store_any(shared);
  } else {
    if (kernel.thread() < p.M) shared.row_scales[kernel.thread()] = Loader::template row_scale<T>(p.linear, kernel.thread());
  }
  for_each_turn<1>(p, at, reduction, kernel);
}

// 640 leave a thread 96 registers, so that a multiprocessor has room for 21 warps: with up to 8 rows of x, unless that would
// spill.
template <class I>
constexpr int kMostThreads = I::kOctets == 1 && !I::kBlocks && (I::kX8 || I::W != Element::e5m2) ? 640 : kFewRowsThreads;

template <class T, class Loader, X kX, int Octets, int Depth>
__global__ void __launch_bounds__(kMostThreads<Instance<T, Loader, kX, Octets, Depth>>, 1)
    rowwise_decode_kernel(const __grid_constant__ Params<typename Loader::Linear> p) {
  run<Instance<T, Loader, kX, Octets, Depth>>(p);
}

// body(own) by the blocks of a tile of rows, `own` being what `p`, for kExpertRows rows of one expert, says for those of the
// tile. Rows behind the last expert become zero.
template <class Linear, class Body>
__device__ __forceinline__ void of_own_expert(const Params<Linear>& p, Body&& body) {
  const Linear& all = p.linear;
  wait_for_last_kernel();
  const int experts = static_cast<int>(all.experts);
  const ExpertRows rows = rows_of_tile(all.ends, experts, static_cast<int>(all.M), kExpertRows, blockIdx.z);
  if (rows.begin == rows.end) return;
  if (rows.expert == experts) {
    clear_rows(all.y, rows, all.N, all.output);
    return;
  }
  Params<Linear> own = p;
  own.linear = of_expert(all, rows.expert);
  own.linear.x = behind(all.x, rows.begin * all.K, all.type);
  own.linear.y = static_cast<char*>(all.y) + rows.begin * all.N * bytes_of(all.output);
  if (all.row_scale) own.linear.row_scale = all.row_scale + rows.begin;
  set_rows(own, rows.end - rows.begin, /*warp_tiles=*/1);
  body(own);
}

template <class T, class Loader, X kX, int Depth>
__global__ void __launch_bounds__(kExpertThreads, 1)
    rowwise_decode_of_experts(const __grid_constant__ Params<typename Loader::Linear> p) {
  of_own_expert(p, [](const auto& own) { run<Instance<T, Loader, kX, /*Octets=*/1, Depth>>(own); });
}

}  // namespace aoext::cuda::rowwise_decode
