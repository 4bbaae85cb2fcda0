// How packed_mma.cuh and packed_tiles.cuh bring a warp's rows of a weight to shared memory, and what their groups are multiplied
// by: a slice of K at a time.
#pragma once

#include "cuda/kernels/packed.cuh"
#include "cuda/kernels/packed_mma_params.h"
#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda::packed_mma {

using packed::Unit;

// Up to 16 bytes, and zeros behind them.
__device__ __forceinline__ void copy_some(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// A value that the compiler cannot compute again in a loop.
__device__ __forceinline__ int kept(int v) {
  int own;
  asm volatile("mov.b32 %0, %1;" : "=r"(own) : "r"(v));
  return own;
}

__device__ __forceinline__ const uint8_t* kept(const uint8_t* v) {
  const uint8_t* own;
  asm volatile("mov.b64 %0, %1;" : "=l"(own) : "l"(v));
  return own;
}

// Copies slices of a warp's kRows rows as they lie, from the multiple of 16 bytes before each on. So they come with some bytes of
// their neighbours; behind the weight's last bytes there may be nothing. Neighbouring lanes have neighbouring chunks: the lines
// and banks that a copy touches are what limits kernels for few rows.
template <Slice kSlice, int kRows>
struct RowCopies {
  static constexpr int kChunks = (kSlice.bytes + 14 + 15) / 16, kAll = kRows * kChunks, kTurns = (kAll + 31) / 32;
  static constexpr bool kLinear = kSlice.pitch == kChunks * 16;
  static constexpr uintptr_t kWhole = ~uintptr_t{15};

  const PackedLinear& p;
  const uint8_t* first;  // of the rows
  int offset[kTurns], to[kLinear ? 1 : kTurns], limit, n, lane;

  __device__ __forceinline__ RowCopies(const PackedLinear& p, int first_n, int lane)
      : p(p), n(min(first_n, static_cast<int>(p.N) - 1)), lane(lane) {
    first = kept(p.weight + n * p.row_bytes);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      offset[i] = kept(offset_of(lane + i * 32));
      if (i == 0 || !kLinear) to[i] = kept(to_of(lane + i * 32));
    }
    const int64_t left = (p.N - n - min(kRows, rows())) * p.row_bytes + p.row_bytes - kChunks * 16;
    limit = kept(static_cast<int>(min(left, int64_t{1} << 30)));
  }

  // How many the weight has from the first on; those behind the last one are its copies.
  __device__ __forceinline__ int rows() const { return static_cast<int>(p.N) - n; }
  __device__ __forceinline__ int offset_of(int item) const {
    return min(item / kChunks, rows() - 1) * static_cast<int>(p.row_bytes) + item % kChunks * 16;
  }
  static __device__ __forceinline__ int to_of(int item) { return item / kChunks * kSlice.pitch + item % kChunks * 16; }
  __device__ __forceinline__ bool has(int turn) const { return kAll % 32 == 0 || turn < kTurns - 1 || lane < kAll % 32; }

  // `at` bytes on in each row.
  __device__ __forceinline__ void copy(uint32_t shared, int at) const {
    const uintptr_t from = reinterpret_cast<uintptr_t>(first) + at;
    if (at > limit) return copy_last(shared, from);
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
      if (has(i))
        copy16(shared + (kLinear ? to[0] + i * 512 : to[kLinear ? 0 : i]),
               reinterpret_cast<const void*>((from + static_cast<uint32_t>(offset[i])) & kWhole), true);
  }

  // The same into L2 only, while the last kernel ends.
  __device__ __forceinline__ void prefetch(int at) const {
    if (at > limit) return;
#pragma unroll
    for (int i = 0; i < kTurns; ++i) prefetch_line(first + at + offset[i]);
  }

  // Where they may be among the last bytes.
  __device__ __forceinline__ void copy_last(uint32_t shared, uintptr_t from) const {
    const uint8_t* const end = p.weight + p.N * p.row_bytes;
#pragma unroll 1
    for (int item = lane; item < kAll; item += 32) {
      const uintptr_t own = (from + static_cast<uint32_t>(offset_of(item))) & kWhole;
      const int64_t left = reinterpret_cast<intptr_t>(end) - static_cast<intptr_t>(own);
      copy_some(shared + to_of(item), left > 0 ? reinterpret_cast<const void*>(own) : first,
                static_cast<int>(max(int64_t{0}, min(left, int64_t{16}))));
    }
  }
};

// Where the units of a lane's rows begin in a slice: of rows g, g + 8, …
template <Slice kSlice, int kRows>
struct LaneUnits {
  static constexpr int kSets = kRows / 8;
  int row, before[kSets];  // bytes to row g; and the first unit's, of a multiple of 16

  __device__ __forceinline__ LaneUnits(const PackedLinear& p, int n, int lane) : row(kept(lane / 4 * kSlice.pitch)) {
    const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.weight));
#pragma unroll
    for (int i = 0; i < kSets; ++i)
      before[i] =
          kept(static_cast<int>((first + static_cast<uint32_t>(n + lane / 4 + i * 8) * static_cast<uint32_t>(p.row_bytes)) % 16));
  }

  // In a slice that begins `at` bytes on in each row.
  __device__ __forceinline__ void find(const uint8_t* rows, int at, const uint8_t* (&units)[kSets]) const {
#pragma unroll
    for (int i = 0; i < kSets; ++i)
      units[i] = rows + row + i * 8 * kSlice.pitch + (kSlice.bytes % 16 == 0 ? before[i] : (before[i] + at & 15));
  }
};

// The same of row n.
__device__ __forceinline__ const uint8_t* units_of(const PackedLinear& p, const uint8_t* row, int n, int at) {
  const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p.weight)) + static_cast<uint32_t>(at);
  return row + (first + static_cast<uint32_t>(n) * static_cast<uint32_t>(p.row_bytes)) % 16;
}

// Copies scales, then zeros, of codes beside them: [lines of scale_k][2][block_n] from k and n0 on, by so many threads.
__device__ __forceinline__ void copy_scales(const Params& a, uint32_t to, int64_t k, int slice_k, int64_t n0, int block_n,
                                            int thread, int threads) {
  const PackedLinear& p = a.p;
  const int size = bytes_of(p.scale_type), count = 2 * slice_k / a.scale_k << a.line_log2;
#pragma unroll 1
  for (int i = thread; i < count; i += threads) {
    const int line = i >> a.line_log2, chunk = i - (line << a.line_log2);
    const uint32_t own = static_cast<uint32_t>(k) + line / 2 * a.scale_k;
    const int64_t n = n0 + chunk * (16 / size);
    const bool inside = own < p.K && n < p.N;
    const int64_t at = inside ? ((__umulhi(own / 8, a.group_magic) >> a.group_shift) * p.N + n) * size : 0;
    copy16(to + i * 16, static_cast<const char*>(line & 1 ? p.zero : p.scale) + at, inside);
  }
}

// A slice's groups, a scale and a zero for each, [row][group]; rows so far apart that those of an mma lie in different banks.
// They are what T's codes above kBase, times 2^kUp, want.
template <Code kCode, int kRows, Slice kSlice, int kBase, int kUp>
struct Pairs {
  using U = Unit<kCode>;
  static constexpr float kDown = 1.0f / (1 << kUp);
  static constexpr int kPitch = U::kBeside ? 0 : kSlice.k / U::kGroup + 1;  // 0: the launch's to say
  static_assert(packed::is_linear(U::kLayout.scale.factor, U::kGroups) &&
                packed::is_linear(U::kLayout.zero_point.factor, U::kGroups));

  static __device__ __forceinline__ float2 pair(float scale, float zero) {
    const float s = scale * kDown;
    return {s, fmaf(-kBase, s, zero)};
  }

  // By a warp. units(row) is where the units of a row begin, and `left` the k of the slice that there are.
  template <class Units>
  static __device__ __forceinline__ void of_blocks(float2* own, int pitch, int lane, int left, const Units& units) {
    if constexpr (U::kGroups >= 4) {
      constexpr int kOfUnit = U::kGroups / 4, kOfRow = kSlice.k / U::kValues * kOfUnit;
      static_assert(kRows * kOfRow % 32 == 0);
#pragma unroll
      for (int i = 0; i < kRows * kOfRow / 32; ++i) {
        const int item = lane + i * 32, row = item / kOfRow, four = item % kOfRow;
        packed::Affine a[4];
        packed::affine_of<kCode>(units(row) + four / kOfUnit * U::kBytes, four % kOfUnit, a);
#pragma unroll
        for (int j = 0; j < 4; ++j) own[row * pitch + four * 4 + j] = pair(a[j].scale, a[j].zero);
      }
    } else {
      static_assert(U::kGroups == 1);
      constexpr int kOfRow = kSlice.k / U::kValues;
#pragma unroll
      for (int i = 0; i < (kRows * kOfRow + 31) / 32; ++i) {
        const int item = lane + i * 32, row = item / kOfRow, unit = item % kOfRow;
        if (kRows * kOfRow % 32 != 0 && item >= kRows * kOfRow) break;
        packed::Affine a[4];
        packed::affine_of<kCode>(units(row) + unit * U::kBytes, 0, a);
        own[row * pitch + unit] = unit * U::kValues < left ? pair(a[0].scale, a[0].zero) : float2{0, 0};
      }
    }
  }

  // The same by lines that copy_scales brought, from the warp's first output channel on.
  static __device__ __forceinline__ void of_lines(float2* own, int pitch, int lane, const void* lines, Element type, int groups,
                                                  int block_n) {
    for (int item = lane; item < kRows * groups; item += 32) {
      const int row = item % kRows, group = item / kRows, at = 2 * group * block_n + row;
      own[row * pitch + group] = pair(load_float(lines, at, type), load_float(lines, at + block_n, type));
    }
  }
};

// Output channels [n0, n0 + block_n) of rows that no expert has become zero.
__device__ __forceinline__ void clear_rows(const PackedLinear& p, const ExpertRows& rows, int64_t n0, int block_n) {
  for (int i = threadIdx.x; i < (rows.end - rows.begin) * block_n; i += blockDim.x)
    if (const int64_t n = n0 + i % block_n; n < p.N) clear(p.y, (rows.begin + i / block_n) * p.N + n, p.output);
}

}  // namespace aoext::cuda::packed_mma
