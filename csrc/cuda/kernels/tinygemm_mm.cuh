// y[M, N] = x[M, K] · wᵀ from the tinygemm layout, for few rows of x.
//
// w = (u − 8) · s + z. The tensor cores multiply x by 128 + u, an exact bfloat16 that costs one logic operation for two values;
// with v = 128 + u, w = v · s + (z − 136 s), so that for each group of k
//   y += s · Σ x v + (z − 136 s) · Σ x,      in float32.
//
// The weight is operand A of mma.m16n8k16 (swap_ab): two n-tiles of the layout are its 16 rows, 8 rows of x its columns. A lane's
// word of the layout holds its A values of two such products, so weights go from memory straight to registers.
//
// Memory. There are as many blocks as multiprocessors, and they share the row tiles (16 output channels); the warps of a block
// split the chunks (128 k) of a row tile. A k-tile is one chunk of one row tile: 2 · 16 bytes a lane and the scales of two output
// channels. A warp computes one pair of k-tiles while the next pair is in flight, across row tiles: 16 warps × 2 KB = 32 KB a
// multiprocessor at any time. (Deeper queues of single k-tiles had less in flight: the compiler counts all loads on one
// scoreboard, so waiting for a k-tile waited for those after it.) Warps do not wait for each other: their partial sums of a row
// tile go to one of some buffers in shared memory, and whichever warp comes by one row tile later adds them, in the order of the
// warps: same input, same bits. x lies in shared memory in the order in which lanes read it (one 16-byte read for two products),
// all of K where it fits, else a "phase" of it at a time: row tiles are then computed once for each phase, and their sums wait in
// shared memory.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/tinygemm_sequence.cuh"

namespace aoext::cuda::tinygemm {

constexpr int kChunkBytes = 288;  // of a row of x: 256, and 32 that rotate the banks from one chunk to the next
constexpr float kOffset = 136.f;  // 128 + 8
constexpr int kMostWarps = 16;    // of a block

// Neighbouring rows of x start half a line of banks apart.
__host__ __device__ constexpr int row_bytes(int chunks) { return (chunks * kChunkBytes + 127) / 128 * 128 + 64; }

// Shared memory, in this order. A slot is one of the 128 · MT results of a row tile: [MT][4 registers][32 lanes].
struct Shared {
  uint32_t full;   // [buffers] barriers: every warp has written its part
  uint32_t empty;  // [buffers] barriers: every slot has been read
  char* x;         // [M] rows of row_bytes(phase_chunks)
  float* sums;     // [phase_chunks · Sub][rows]: Σ x of a group's part of a chunk
  float* part;     // [buffers][warps][slots]: each warp's part of a row tile
  float* tile;     // [row tiles of the block][slots], where there are several phases
};

constexpr int kBarrierBytes = 64;

// Values p of a word as two bfloat16, 128 + u each: u fills the low bits of 128's mantissa.
__device__ __forceinline__ uint32_t values(uint32_t word, int p) {
  uint32_t v;
  asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(v) : "r"(word >> (4 * p)));
  return v;
}

// Copies a phase of x: in every 32 of k, the four pairs that lane t of a quad multiplies lie together, and the
// four lanes' places turn in the second half of a chunk, so that neighbouring threads write to different banks.
template <int Sub>
__device__ __forceinline__ void stage(const Shared& shared, const Shape& s, const Turn& at, int rows) {
  const int blocks = at.count * 4, total = static_cast<int>(s.p.M) * blocks, bytes = row_bytes(s.phase_chunks);
  const int lane = threadIdx.x % 32;
  for (int first = threadIdx.x - lane; first < total; first += blockDim.x) {
    const int index = first + lane, row = index / blocks, block = index - row * blocks;
    const int k = at.begin * kTinygemmChunk + 32 * block;
    const bool here = index < total;
    uint4 v[4] = {};
    if (here && k < s.p.K) {
      const uint4* source = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(s.p.x) + row * s.p.K + k);
#pragma unroll
      for (int p = 0; p < 4; ++p) v[p] = __ldg(source + p);
    }
    float sum = 0;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      for (const uint32_t pair : {v[p].x, v[p].y, v[p].z, v[p].w})
        sum += __uint_as_float(pair << 16) + __uint_as_float(pair & 0xffff0000);
    }
    if constexpr (Sub == 1) {
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
    }
    if (!here) continue;
    char* out = shared.x + row * bytes + block / 4 * kChunkBytes + block % 4 * 64;
    const int turn = block % 4 / 2;
    *reinterpret_cast<uint4*>(out + ((turn + 0) & 3) * 16) = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
    *reinterpret_cast<uint4*>(out + ((turn + 1) & 3) * 16) = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
    *reinterpret_cast<uint4*>(out + ((turn + 2) & 3) * 16) = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
    *reinterpret_cast<uint4*>(out + ((turn + 3) & 3) * 16) = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
    if (Sub == 4) {
      shared.sums[block * rows + row] = sum;
    } else if (block % 4 == 0) {
      shared.sums[block / 4 * rows + row] = sum;
    }
  }
}

// Adds a k-tile's products to the lane's sums. Sub is how many groups a chunk may have: 1, or 4 of 32.
template <int Sub, int MT>
__device__ __forceinline__ void multiply(float (&total)[MT][4], const KTile& k_tile, const char* x_chunk, const float* sums,
                                         const int (&row)[MT], int lane) {
  const int t = lane % 4;
  // With few rows two chains of products, since each waits for the one before.
  constexpr int kChains = MT == 1 ? 2 : 1;
  float part[kChains][MT][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t first[4] = {values(k_tile.low[i], 0), values(k_tile.high[i], 0), values(k_tile.low[i], 1),
                               values(k_tile.high[i], 1)};
    const uint32_t second[4] = {values(k_tile.low[i], 2), values(k_tile.high[i], 2), values(k_tile.low[i], 3),
                                values(k_tile.high[i], 3)};
    const int column = i * 64 + ((t + i / 2) & 3) * 16;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const uint4 x = *reinterpret_cast<const uint4*>(x_chunk + row[m] + column);
      mma<__nv_bfloat16>(part[0][m], first, x.x, x.y);
      mma<__nv_bfloat16>(part[kChains - 1][m], second, x.z, x.w);
    }
    if (Sub == 1 && i < 3) continue;
    uint32_t low_sz = k_tile.low_sz, high_sz = k_tile.high_sz;
    if (Sub == 4) {
      low_sz = __shfl_sync(0xffffffff, low_sz, i, 4);
      high_sz = __shfl_sync(0xffffffff, high_sz, i, 4);
    }
    const float s0 = __uint_as_float(low_sz << 16), s1 = __uint_as_float(high_sz << 16);
    const float z0 = __uint_as_float(low_sz & 0xffff0000) - kOffset * s0;
    const float z1 = __uint_as_float(high_sz & 0xffff0000) - kOffset * s1;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      const float2 x = *reinterpret_cast<const float2*>(sums + (Sub == 4 ? i * 8 * MT : 0) + 8 * m);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float product = kChains == 2 ? part[0][m][c] + part[1][m][c] : part[0][m][c];
        total[m][c] += (c < 2 ? s0 : s1) * product + (c < 2 ? z0 : z1) * (c % 2 ? x.y : x.x);
        part[0][m][c] = part[kChains - 1][m][c] = 0;
      }
    }
  }
}

// Whether a slot row has results of rows of x that exist; 8 · (row / 4) + row % 2 is the first of them.
__device__ __forceinline__ bool has_results(int row, int M) { return row / 4 * 8 + row % 2 < M; }

// Stores a warp's partial sums of a row tile.
template <int MT>
__device__ __forceinline__ void store_partial(float (&total)[MT][4], const Shared& shared, const Shape& s, const Turn& at,
                                              int warp, int warps, int lane) {
  constexpr int kSlots = 128 * MT;
  barrier_wait(shared.empty + 8 * at.buffer, at.parity ^ 1);
  float* part = shared.part + (at.buffer * warps + warp) * kSlots + lane;
#pragma unroll
  for (int m = 0; m < MT; ++m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (has_results(m * 4 + c, static_cast<int>(s.p.M))) part[(m * 4 + c) * 32] = total[m][c];
      total[m][c] = 0;
    }
  }
  __syncwarp();
  if (arrives(lane)) barrier_arrive(shared.full + 8 * at.buffer);
}

// Adds the partial sums of a row tile, and stores y or keeps the sums for the next phase: in every phase a row of slots belongs
// to the same warp.
template <int MT>
__device__ __forceinline__ void reduce_partials(const Shared& shared, const Shape& s, const Turn& at, int warps, int lane) {
  constexpr int kSlots = 128 * MT;
  const int M = static_cast<int>(s.p.M), g = lane / 4, t = lane % 4;
  const bool first_phase = at.begin == 0, last_phase = at.begin + at.count >= s.chunks;
  for (int row = at.first_row; row < 4 * MT; row += warps) {
    if (!has_results(row, M)) continue;
    barrier_wait(shared.full + 8 * at.buffer, at.parity);
    const float* part = shared.part + at.buffer * warps * kSlots + row * 32 + lane;
    float y = 0;
#pragma unroll 8
    for (int w = 0; w < warps; ++w) y += part[w * kSlots];
    __syncwarp();
    if (arrives(lane)) barrier_arrive(shared.empty + 8 * at.buffer);
    float* kept = shared.tile + at.index * kSlots + row * 32 + lane;
    if (!first_phase) y += *kept;
    if (!last_phase) {
      *kept = y;
      continue;
    }
    const int m = row / 4 * 8 + 2 * t + row % 2;
    const int64_t n = static_cast<int64_t>(at.tile) * kRows + g + (row % 4 < 2 ? 0 : 8);
    if (m < M && n < s.p.N) static_cast<__nv_bfloat16*>(s.p.y)[m * s.p.N + n] = __float2bfloat16_rn(y);
  }
}

template <int Inner, int Sub, int MT>
__global__ void __launch_bounds__(32 * kMostWarps, 1) mm_kernel(const __grid_constant__ Shape s) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kBuffers = buffers(8 * MT);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
  const int M = static_cast<int>(s.p.M), bytes = row_bytes(s.phase_chunks);
  Shared shared;
  shared.full = shared_address(memory);
  shared.empty = shared.full + 8 * kBuffers;
  shared.x = memory + kBarrierBytes;
  shared.sums = reinterpret_cast<float*>(shared.x + M * bytes);
  shared.part = shared.sums + s.phase_chunks * Sub * 8 * MT;
  shared.tile = shared.part + kBuffers * warps * 128 * MT;
  if (threadIdx.x == 0) {
    int rows = 0;
    for (int r = 0; r < 4 * MT; ++r) rows += has_results(r, M);
    for (int b = 0; b < kBuffers; ++b) {
      barrier_init(shared.full + 8 * b, kArrivals * warps);
      barrier_init(shared.empty + 8 * b, kArrivals * rows);
    }
  }
  int row[MT];  // columns past M repeat the last row; their results are dropped
#pragma unroll
  for (int m = 0; m < MT; ++m) row[m] = min(8 * m + lane / 4, M - 1) * bytes;

  KTile even[2] = {}, odd[2] = {};  // two pairs: one is computed, one is in flight
  Loads<Inner> loads(s, warp, warps, lane);
  loads.ask(s);
  wait_for_last_kernel();
  start_next_kernel();
  loads.next(even[0], s);
  loads.next(even[1], s);
  Turn at(s, warp), before = at;
  const int x_step = warps * kChunkBytes, sum_step = warps * Sub * 8 * MT;
  const char* const x_start = shared.x + warp * kChunkBytes;
  const float* const sum_start = shared.sums + warp * Sub * 8 * MT + 2 * (lane % 4);
  float total[MT][4] = {};
  int left = 0, local = 0;
  bool any_before = false;
  const char* x_chunk = x_start;
  const float* sums = sum_start;

  // Before a turn's first k-tile, and after each k-tile.
  const auto start = [&] {
    if (left > 0) return;
    if (at.index == 0) {
      if (at.begin > 0) __syncthreads();  // the phase before is done with x
      stage<Sub>(shared, s, at, 8 * MT);
      __syncthreads();
    }
    left = at.k_tiles;
    local = warp;
    x_chunk = x_start;
    sums = sum_start;
  };
  const auto compute = [&](const KTile& k_tile) {
    if (local < at.count) multiply<Sub, MT>(total, k_tile, x_chunk, sums, row, lane);
    local += warps;
    x_chunk += x_step;
    sums += sum_step;
    --left;
  };
  const auto finish = [&] {
    if (left > 0) return;
    store_partial<MT>(total, shared, s, at, warp, warps, lane);
    if (any_before) reduce_partials<MT>(shared, s, before, warps, lane);
    any_before = true;
    before = at;
    at.advance<MT>(s, warp, warps);
  };
  const uint32_t zero = s.p.inner_k_tiles & 1;  // zero, which the compiler does not know
  const auto step = [&](const KTile(&now)[2], KTile(&next)[2]) {
    // Adds nothing, but so the next loads can start only once all loads of `now` are here: the wait for them
    // stands in one place on every path, and does not wait for the next ones too.
    loads.k += now[0].low[0] & zero;
    loads.next(next[0], s);
    loads.next(next[1], s);
    start();
    compute(now[0]);
    finish();
    if (at.done(s)) return false;
    start();
    compute(now[1]);
    finish();
    return !at.done(s);
  };
  while (step(even, odd) && step(odd, even)) {
  }
  reduce_partials<MT>(shared, s, before, warps, lane);
}

}  // namespace aoext::cuda::tinygemm
