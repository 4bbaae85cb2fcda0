// Codes of 4 bits with a power of two for 32 k or an e4m3 for 16 (mxfp4, nvfp4), for few rows of x in bf16, limited by reading
// the codes.
//
// Memory is rowwise_decode.cuh's, and few_rows.cuh has the loop: a k-tile of 16 output channels by 256 k is 2 KB of codes and up
// to 256 bytes of scales, for one warp, which takes a tile of output channels and a k-split through a ring of stages of its own.
// Lane (g = lane / 4, t = lane % 4) holds, of output channels 2g and 2g + 1, 32 neighbouring k of each half of a k-tile: one
// power, or two e4m3.
//
// What limits it beside memory is integer operations: a quarter of a multiprocessor has 6.4 cycles for two codes while it reads
// at full speed, and such an operation takes two. A table in shared memory (blocks_decode.cuh) would cost a read for every two
// codes, and shared memory is as busy as memory then. So the table of e2m1 is recognised, by the kernel, as it lies on the GPU.
// Its codes have the sign, exponent and mantissa of a bf16, closer together: an AND, a multiplication, which is no integer
// operation of those, and an AND make a pair of them, 2^-126 times as large as they are. The multiplication by the scale makes up
// for that. Nibbles j and j + 4 of a word are a pair, and x is brought into this order in shared memory, once.
//
// Any other table is looked up by permutations of registers (table16.cuh), at half the pace.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/blocks.cuh"
#include "cuda/kernels/few_rows.cuh"
#include "cuda/kernels/rowwise_decode.cuh"
#include "cuda/kernels/table16.cuh"

namespace aoext::cuda::fp4_decode {

using rowwise_decode::kRowBytes;
using rowwise_decode::kTileN;
using rowwise_decode::kWeightBytes;

constexpr int kTileK = 256;        // k of a k-tile
constexpr int kHalfX = kTileK;     // bytes of x in half a k-tile
constexpr int kRowX = 2 * kHalfX;  // and in a k-tile
// Fewer registers leave room for blocks beside a block (choose_fp4_decode).
template <int Octets>
constexpr int kMostThreads = Octets == 1 ? 640 : kFewRowsThreads;
constexpr float kSmall = 0x1p126f;  // times as small as they are: e2m1 as bf16
constexpr uint32_t kSmallPair = 0x7e807e80;

// A BlockLinear whose scales are [N, K / kGroup].
struct Fp4Linear : BlockLinear {};
__device__ __forceinline__ Fp4Linear of_expert(const Fp4Linear& p, int64_t expert) {
  return {of_expert(static_cast<const BlockLinear&>(p), expert)};
}
using Params = rowwise_decode::Params<Fp4Linear>;

// Bytes of a stage: codes, and scales of 16 output channels.
__host__ __device__ constexpr int stage_bytes(int group) { return kWeightBytes + kTileN * (kTileK / group); }

__device__ __forceinline__ uint32_t product(uint32_t a, uint32_t b) {
  return bits<uint32_t>(__hmul2(bits<__nv_bfloat162>(a), bits<__nv_bfloat162>(b)));
}

// Eight codes of e2m1, nibbles j and j + 4 in pair j: sign, exponent and mantissa go where bf16 has them.
__device__ __forceinline__ void e2m1_pairs(uint32_t word, uint32_t (&pair)[4]) {
  const uint32_t next = word >> 8;
  pair[0] = (word & 0x000f000fu) * 0x1040u & 0x81c081c0u;
  pair[1] = (word & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
  pair[2] = (next & 0x000f000fu) * 0x1040u & 0x81c081c0u;
  pair[3] = (next & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
}

// Whether a warp's table is e2m1's.
__device__ __forceinline__ bool is_e2m1(const float* table, int lane) {
  const uint32_t code = lane & 15;
  const float value = __uint_as_float((code & 8) << 28 | (code & 7) << 22) * kSmall;
  return __all_sync(~0u, table[code] == value);
}

// Scales as pairs of bf16, of both rows of a lane and half; kE2m1: times what makes up for small codes, and kBack less.
struct Exponents {
  static constexpr int kGroup = 32;
  static constexpr float kBack = 1;

  struct OfHalf {
    uint32_t pair[2][1];
    bool wide;  // a power is too large for kSmall to be multiplied into it: codes are multiplied twice
  };

  // e8m0 as bf16: 0 is a subnormal number, 255 is NaN.
  static __device__ __forceinline__ uint32_t plain(uint32_t e) {
    return e == 255 ? 0x7fff7fffu : e == 0 ? 0x00400040u : e * 0x00800080u;
  }

  template <bool kE2m1>
  static __device__ __forceinline__ OfHalf read(uint32_t row, int h, int t) {
    constexpr uint32_t kLargest = 254 - 126;  // that kSmall leaves finite
    uint32_t e[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(e[r]) : "r"(row + r * 8 + h * 4 + t) : "memory");
    OfHalf all;
    all.wide = kE2m1 && __any_sync(~0u, max(e[0], e[1]) > kLargest);
#pragma unroll
    for (int r = 0; r < 2; ++r) all.pair[r][0] = kE2m1 && !all.wide ? e[r] * 0x00800080u + 0x3f003f00u : plain(e[r]);
    return all;
  }
};

struct E4m3 {
  static constexpr int kGroup = 16;
  static constexpr float kBack = 0x1p8f;

  struct OfHalf {
    uint32_t pair[2][2];
    static constexpr bool wide = false;
  };

  template <bool kE2m1>
  static __device__ __forceinline__ OfHalf read(uint32_t row, int h, int t) {
    constexpr float kFactor = kE2m1 ? kSmall / kBack : 1.0f;
    OfHalf all;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint16_t two;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(two) : "r"(row + r * 16 + h * 8 + t * 2) : "memory");
      const float2 v = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<Element::e4m3>(two, 0)));
      const uint32_t first = __float_as_uint(v.x * kFactor), second = __float_as_uint(v.y * kFactor);
      all.pair[r][0] = __byte_perm(first, first, 0x3232), all.pair[r][1] = __byte_perm(second, second, 0x3232);
    }
    return all;
  }
};

// Addresses in shared memory, in their order.
struct Shared {
  uint32_t x;         // [k-tile of the chunk][m] of kRowX
  uint32_t ring;      // of this warp: codes of a k-tile, then scales
  uint32_t barriers;  // two
  Channel* channels;  // two tables of a group's
  float* partial;

  __device__ __forceinline__ Shared(const Params& p, const Position& at, uint8_t* smem, int ring_bytes) {
    const int x_bytes = p.chunk_k_tiles * p.M * kRowX;
    x = shared_address(smem);
    ring = x + x_bytes + at.warp * ring_bytes;
    uint8_t* const beyond = smem + x_bytes + at.warps * ring_bytes;
    barriers = shared_address(beyond);
    channels = reinterpret_cast<Channel*>(beyond + 16);
    partial = reinterpret_cast<float*>(channels + 2 * at.tiles * kTileN);
  }
};

// Copies a warp's codes and scales to its ring. For output channels past the last, the last is read, and nothing stored; k past K
// are zeros. Lane t copies half t % 2 of the scales of output channel 2g + t / 2.
template <class Scales>
struct Copies {
  static constexpr int kStage = stage_bytes(Scales::kGroup), kScaleRow = kTileK / Scales::kGroup;

  const Params& p;
  const Position& at;
  const uint32_t ring;
  Cursor<1> cursor;
  const uint8_t *weight, *scale;
  uint32_t to_next;  // bytes to row 2g + 1

  __device__ __forceinline__ Copies(const Params& p, const Position& at, uint32_t ring) : p(p), at(at), ring(ring) {
    cursor.start(p, at);
    aim();
  }

  __device__ __forceinline__ int row_bytes() const { return static_cast<int>(p.linear.K) / 2; }

  __device__ __forceinline__ void aim() {
    const Fp4Linear& linear = p.linear;
    const int last = static_cast<int>(linear.N) - 1, row = min((cursor.group * at.tiles + at.tile) * kTileN + 2 * at.g, last);
    weight = static_cast<const uint8_t*>(linear.weight) + row * (linear.K / 2) + at.t * 16;
    to_next = row < last ? row_bytes() : 0;
    scale = static_cast<const uint8_t*>(linear.block_scale) + min(row + at.t / 2, last) * (linear.K / Scales::kGroup) +
            at.t % 2 * (kScaleRow / 2);
  }

  __device__ __forceinline__ void fetch(int slot) {
    if (cursor.is_inside(p)) {
      const uint32_t to = ring + slot * kStage;
      const int byte = cursor.k_tile * kRowBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool inside = byte + h * 64 + at.t * 16 < row_bytes();
        const uint8_t* from = weight + (inside ? byte + h * 64 : 0);
        copy16(to + at.lane * 16 + h * 1024, from, inside);
        copy16(to + at.lane * 16 + h * 1024 + 512, from + to_next, inside);
      }
      const int of_scales = cursor.k_tile * kScaleRow;
      const bool inside = of_scales + at.t % 2 * (kScaleRow / 2) < static_cast<int>(p.linear.K) / Scales::kGroup;
      copy<kScaleRow / 2>(to + kWeightBytes + at.lane * (kScaleRow / 2), scale + (inside ? of_scales : 0), inside);
    }
    commit_copies();
    cursor.advance(p, at, [&] { aim(); });
  }
};

// Where a piece of 16 bytes of a row of x lies: so that the lanes of neighbouring rows read all banks.
__device__ __forceinline__ int place(int m, int piece) { return (piece ^ (m & 1) * 2 ^ (piece >> 3 & 1)) * 16; }

// body(where a piece of 16 bytes lies, where it comes from, whether it is inside) for those of k-tiles [begin, end) of x that are
// this lane's: four lanes take one (k-tile, m) at a time.
template <class Body>
__device__ __forceinline__ void for_each_piece(const Params& p, const Position& at, uint32_t x, int begin, int end, Body&& body) {
  const int count = (end - begin) * p.M, K = static_cast<int>(p.linear.K);
#pragma unroll 1
  for (int item = at.warp * 8 + at.g; item < count; item += at.warps * 8) {
    const int k_tile = item * p.m_magic >> 20, m = item - k_tile * p.M;
    const auto* from = static_cast<const uint8_t*>(p.linear.x) + (m * p.linear.K + (begin + k_tile) * kTileK) * 2;
#pragma unroll
    for (int i = 0; i < kRowX / 64; ++i) {
      const int piece = i * 4 + at.t;
      const bool inside = (begin + k_tile) * kTileK + piece * 8 < K;
      body(x + item * kRowX + place(m, piece), inside ? from + piece * 16 : from, inside);
    }
  }
}

__device__ __forceinline__ void copy_x(const Params& p, const Position& at, uint32_t x, int begin, int end) {
  for_each_piece(p, at, x, begin, end, copy16_cached);
}

// Brings what this lane copied itself into the order of pairs.
__device__ __forceinline__ void pair_x(const Params& p, const Position& at, uint32_t x, int begin, int end) {
  for_each_piece(p, at, x, begin, end, [](uint32_t place, const uint8_t*, bool) {
    const uint4 v = load_shared_16(place);
    store_shared_16(place, {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
                            __byte_perm(v.y, v.w, 0x7632)});
  });
}

// What few_rows.cuh's loop asks for. kE2m1: whether codes are e2m1's; otherwise they are looked up.
template <class Scales, int Octets, int Depth, bool kE2m1>
struct Kernel {
  static constexpr int kChains = Octets == 1 ? 2 : 1;  // so that one mma does not wait for another

  const Params& p;
  const Position& at;
  const Shared& shared;
  const SplitKReduction<float>& reduction;
  Copies<Scales>& copies;
  const Table16& table;
  const float factor;  // of all sums
  float y[Octets][4];
  uint32_t column[Octets];  // this lane's row of x as a column of B
  RawChannel channel;       // whose bias this thread brings: loaded as a turn begins, in shared memory as it ends
  int slot = 0;             // of the ring, that is multiplied next

  __device__ __forceinline__ Kernel(const Params& p, const Position& at, const Shared& shared,
                                    const SplitKReduction<float>& reduction, Copies<Scales>& copies, const Table16& table,
                                    float factor)
      : p(p), at(at), shared(shared), reduction(reduction), copies(copies), table(table), factor(factor) {
#pragma unroll
    for (int o = 0; o < Octets; ++o) {
      const int m = min(o * 8 + at.g, p.M - 1);
      column[o] = shared.x + m * kRowX + place(m, 4 * at.t);
    }
  }

  __device__ __forceinline__ int thread() const { return at.warp * 32 + at.lane; }
  __device__ __forceinline__ int group_rows() const { return at.tiles * kTileN; }  // fewer than threads

  __device__ __forceinline__ void begin(int group) {
    channel = {};
    const int64_t n = static_cast<int64_t>(group) * group_rows() + thread();
    if (thread() < group_rows() && n < p.linear.N) channel = fetch_channel(p.linear, n);
#pragma unroll
    for (int i = 0; i < Octets * 4; ++i) y[i / 4][i % 4] = 0;
  }

  __device__ __forceinline__ void stage_x(int begin, int end, bool first) {
    if (first) {  // it was asked for before the ring was
      wait_copies<Depth>();
    } else {
      copy_x(p, at, shared.x, begin, end);
      wait_all_copies();
    }
    if constexpr (kE2m1) pair_x(p, at, shared.x, begin, end);
  }

  __device__ __forceinline__ void multiply(int /*group*/, int begin, int end, int k_tile) {
    wait_copies<Depth - 1>();
    __syncwarp();  // a lane reads scales that others copied
    if (begin + k_tile < end) multiply_k_tile(k_tile);
    __syncwarp();
    copies.fetch(slot);
    slot = slot + 1 == Depth ? 0 : slot + 1;
  }

  __device__ __forceinline__ void multiply_k_tile(int k_tile) {
    const uint32_t stage = shared.ring + slot * Copies<Scales>::kStage, x = k_tile * p.M * kRowX;
    float sums[kChains][Octets][4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 codes[2] = {load_shared_16(stage + at.lane * 16 + h * 1024),
                              load_shared_16(stage + at.lane * 16 + h * 1024 + 512)};
      const auto scales = Scales::template read<kE2m1>(stage + kWeightBytes + at.g * 2 * Copies<Scales>::kScaleRow, h, at.t);
      if (scales.wide)
        multiply_half<true>(codes, scales, x, h, sums);
      else
        multiply_half<false>(codes, scales, x, h, sums);
    }
#pragma unroll
    for (int i = 0; i < Octets * 4; ++i)
      y[i / 4][i % 4] += kChains == 1 ? sums[0][i / 4][i % 4] : sums[0][i / 4][i % 4] + sums[kChains - 1][i / 4][i % 4];
  }

  template <bool kWide>
  __device__ __forceinline__ void multiply_half(const uint4 (&codes)[2], const typename Scales::OfHalf& scales, uint32_t x, int h,
                                                float (&sums)[kChains][Octets][4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 b[Octets];
#pragma unroll
      for (int o = 0; o < Octets; ++o) b[o] = load_shared_16(((column[o] + x) ^ j * 16) + h * kHalfX);
      uint32_t a[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t word = j == 0 ? codes[r].x : j == 1 ? codes[r].y : j == 2 ? codes[r].z : codes[r].w;
        if constexpr (kE2m1)
          e2m1_pairs(word, a[r]);
        else
          table.pairs(word, a[r]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kWide) a[r][i] = product(a[r][i], kSmallPair);
          a[r][i] = product(a[r][i], scales.pair[r][j * 8 / Scales::kGroup]);
        }
      }
#pragma unroll
      for (int o = 0; o < Octets; ++o) mma<__nv_bfloat16>(sums[0][o], {a[0][0], a[1][0], a[0][1], a[1][1]}, b[o].x, b[o].y);
#pragma unroll
      for (int o = 0; o < Octets; ++o)
        mma<__nv_bfloat16>(sums[kChains - 1][o], {a[0][2], a[1][2], a[0][3], a[1][3]}, b[o].z, b[o].w);
    }
  }

  __device__ __forceinline__ void finish(int turn) {
    if (thread() < group_rows()) shared.channels[(turn & 1) * group_rows() + thread()] = channel_of(p.linear, channel);
    reduction.put(turn, at.tile, at.k_split, y);
  }

  __device__ __forceinline__ void store(int turn, int tile, int m, float sum) const {
    const int in_group = tile * kTileN + (at.lane & 15);
    const int64_t n = static_cast<int64_t>(blockIdx.y + turn * gridDim.y) * group_rows() + in_group;
    if (n < p.linear.N) store_output(p.linear, m, n, sum, factor, shared.channels[(turn & 1) * group_rows() + in_group]);
  }
};

// What all blocks of a kernel compute.
template <class Scales, int Octets, int Depth>
__device__ __forceinline__ void run(const Params& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  const Fp4Linear& linear = p.linear;
  const Position at(p, 1);
  const Shared shared(p, at, smem, Depth * Copies<Scales>::kStage);
  const SplitKReduction<float> reduction(p, at, shared.partial, shared.barriers);
  Copies<Scales> copies(p, at, shared.ring);
  const int64_t first_row = static_cast<int64_t>(copies.cursor.group * at.tiles + at.tile) * kTileN;
  prefetch_rows(p, at, linear.weight, first_row, kTileN, linear.N, copies.row_bytes(), kRowBytes);
  wait_for_last_kernel();
  start_next_kernel();
  copy_x(p, at, shared.x, at.split_begin, min(at.split_begin + p.chunk_k_tiles, at.split_end));
  commit_copies();
#pragma unroll 1
  for (int d = 0; d < Depth; ++d) copies.fetch(d);
  reduction.start();
  const auto multiply = [&]<bool kE2m1>(std::bool_constant<kE2m1>, const Table16& table, float factor) {
    Kernel<Scales, Octets, Depth, kE2m1> kernel(p, at, shared, reduction, copies, table, factor);
    for_each_turn<1>(p, at, reduction, kernel);
  };
  if (is_e2m1(linear.table, at.lane)) {
    multiply(std::true_type(), Table16(), global_scale(linear) * Scales::kBack);
  } else {
    const float of_table = table_factor<__nv_bfloat16>(linear.table);
    Table16 table;
    table.read<__nv_bfloat16>(linear.table, of_table);
    multiply(std::false_type(), table, global_scale(linear) / of_table);
  }
}

template <class Scales, int Octets, int Depth>
__global__ void __launch_bounds__(kMostThreads<Octets>, 1) fp4_decode_kernel(const __grid_constant__ Params p) {
  run<Scales, Octets, Depth>(p);
}

template <class Scales, int Depth>
__global__ void __launch_bounds__(rowwise_decode::kExpertThreads, 1) fp4_decode_of_experts(const __grid_constant__ Params p) {
  rowwise_decode::of_own_expert(p, [](const Params& own) { run<Scales, /*Octets=*/1, Depth>(own); });
}

}  // namespace aoext::cuda::fp4_decode
