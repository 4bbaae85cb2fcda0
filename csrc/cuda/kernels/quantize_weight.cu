// A weight x [N, K] of high precision, quantised into the memory of one that is in use.
//
// Bound by memory: 2 or 4 bytes of an element in, one or half a byte out, and a scale for each block. Blocks [1, 16 · 2ⁿ], up to
// 512, are a team of lanes each, 16 elements to a lane in two pieces of eight, so that what a scale costs, some 40 instructions,
// is shared. A block of threads takes 16 rows by 512 columns, two units of work to a thread whose pieces are all read before the
// first is looked at. int4's scales lie [K/g, N]: they go through shared memory, so that 16 rows are one piece of memory. Other
// blocks, whole rows and [128, 128], have a block of threads each, which keeps up to eight pieces a thread and reads what is
// longer again.
//
// What must be known of the whole weight before its first block is written stands in `status`, by a kernel of its own: whether it
// holds x already, which stops at the first element that differs; whether it is symmetric; the largest magnitude, and whether all
// is finite, for which alone it reads all of x.
#include "cuda/kernels/quantize_weight.h"

#include <algorithm>
#include <limits>

#include "cuda/kernels/quantize_weight.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using namespace weights;

constexpr int kWarp = 32, kThreads = 256, kPieces = 2, kUnits = 2, kEight = 8;
constexpr int kTileRows = 16, kTileColumns = kThreads * kPieces * kUnits * kEight / kTileRows;
template <class T, int kCount>
constexpr int kMostKept = kCount < kEight ? 2 : 16 / static_cast<int>(sizeof(T));  // pieces that a thread keeps of a larger block
constexpr int kMostLanes = kTileColumns / (kPieces * kEight);
static_assert(kTileColumns == 512 && kMostLanes == kWarp);

__host__ __device__ constexpr bool is_nibble(Element code) { return code == Element::int4 || code == Element::lut4; }

// The pieces of a row are at multiples of kCount elements; those of eight are aligned, others may lie anywhere.
template <class T, int kCount>
__device__ __forceinline__ Piece<T, kCount> load_x(const QuantizeWeight& p, int64_t m, int64_t k) {
  using P = Piece<T, kCount>;
  const T* const at = static_cast<const T*>(p.x) + m * p.pitch + k;
  if constexpr (sizeof(P) == 32) {
    P piece;
    const auto* const halves = reinterpret_cast<const uint4*>(at);
    reinterpret_cast<uint4*>(piece.w)[0] = halves[0], reinterpret_cast<uint4*>(piece.w)[1] = halves[1];
    return piece;
  } else if constexpr (kCount == kEight) {
    return quantize::load_piece<T, kCount>(at, 0);
  } else {
    T values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = at[i];
    P piece{};
    memcpy(piece.w, values, sizeof values);
    return piece;
  }
}

template <Element kCode, int kCount, int kWords>
__device__ __forceinline__ void store_codes(const QuantizeWeight& p, int64_t m, int64_t k, const Words<kWords>& words) {
  auto* const bytes = static_cast<uint8_t*>(p.codes) + (m * p.K + k) / (is_nibble(kCode) ? 2 : 1);
  if constexpr (is_nibble(kCode) ? kCount == 2 : kCount == 1)
    *bytes = static_cast<uint8_t>(words.w[0]);
  else
    *reinterpret_cast<Words<kWords>*>(bytes) = words;
}

// What both kernels know of the whole weight, and whether there is anything to do.
struct Known {
  bool symmetric = false, idle;
  float limit = 0;
  Whole whole;
  Lookup look{};

  // `table` is this block's, in shared memory. All threads come.
  template <Element kCode>
  __device__ __forceinline__ static Known of(const QuantizeWeight& p, Table* table) {
    Known known;
    known.idle = (p.keep && p.status->differs == 0) || (p.check && p.status->refused != 0);
    if constexpr (kCode == Element::int4) {
      known.symmetric = p.symmetric < 0 ? p.status->asymmetric == 0 : p.symmetric != 0;
    } else if constexpr (kCode == Element::lut4) {
      const float value = p.table[threadIdx.x % 16];
      known.limit = bits<float>(__reduce_max_sync(~0u, bits<uint32_t>(value) & 0x7fffffff));
      __shared__ int kind;
      if (threadIdx.x < kWarp) {
        const Table::Kind made = make_table(p.table, !is_float(p.scale_type), known.limit, *table);
        if (threadIdx.x == 0) kind = made;
      }
      __syncthreads();
      known.look = {static_cast<Table::Kind>(kind), table, __fdiv_rn(Table::kPerLimit, known.limit)};
    } else {
      known.limit = quantize::kLimit<kCode>;
    }
    if (p.global_scale != nullptr) {
      const float largest = bits<float>(p.status->largest);
      known.whole = Whole(largest, known.limit);
      if (blockIdx.x == 0 && threadIdx.x == 0 && !known.idle) *p.global_scale = known.whole.stored(largest, known.limit);
    }
    return known;
  }
};

// What blocks are scaled by: the range of int4, else the largest magnitude, as bits that order as it does.
template <class T, Element kCode, int kCount>
struct Extent {
  Range range;
  uint32_t absmax;

  __device__ __forceinline__ static Extent of_nothing() {
    const float infinity = bits<float>(kInfinity);
    return {{infinity, -infinity}, 0};
  }

  template <int kPieceCount>
  __device__ __forceinline__ void add(const Piece<T, kCount> (&pieces)[kPieceCount], int count = kPieceCount) {
#pragma unroll
    for (int i = 0; i < kPieceCount; ++i)
      if (i < count) {
        if constexpr (kCode == Element::int4)
          range.add(range_of<T, kCount>(pieces[i]));
        else
          absmax = absmax_of<T>(pieces[i], absmax);
      }
  }

  __device__ __forceinline__ void exchange(int distance) {
    if constexpr (kCode == Element::int4)
      range.add({__shfl_xor_sync(~0u, range.low, distance), __shfl_xor_sync(~0u, range.high, distance)});
    else
      absmax = max(absmax, __shfl_xor_sync(~0u, absmax, distance));
  }

  __device__ __forceinline__ Block block(const QuantizeWeight& p, const Known& known) const {
    if constexpr (kCode == Element::int4) {
      if (!is_finite(range.low) || !is_finite(range.high)) return Block::broken();
      return Block(range, p.scale_type, known.symmetric);
    } else {
      if (absmax >= kInfinity || !is_finite(known.whole.scale)) return Block::broken();
      return Block(bits<float>(absmax), known.limit, kCode == Element::lut4, p.scale_type, known.whole);
    }
  }
};

template <class T, Element kCode, int kCount>
__device__ __forceinline__ auto codes_of(const Block& b, const Piece<T, kCount>& piece, const Lookup& look) {
  if (b.finite)
    return b.is_moderate ? encode<T, kCode, kCount, true>(b, piece, look) : encode<T, kCode, kCount, false>(b, piece, look);
  return decltype(encode<T, kCode, kCount, true>(b, piece, look)){};
}

// Blocks [1, 16 · 2^lanes_log2]. The registers of three or four blocks of threads to a multiprocessor suffice.
template <class T, Element kCode>
__global__ void __launch_bounds__(kThreads, kCode == Element::lut4 ? 3 : 4)
    quantize_groups(const __grid_constant__ QuantizeWeight p, int lanes_log2, uint32_t tiles_of_row) {
  __shared__ Table table;
  __shared__ float scales[kCode == Element::int4 ? 2 : 1][kThreads * kUnits];
  const int lane = threadIdx.x & ((1 << lanes_log2) - 1), team = threadIdx.x >> lanes_log2;
  const int across_log2 = 5 - lanes_log2, teams = kThreads >> lanes_log2;  // blocks of a row that a tile has
  const int64_t m0 = static_cast<int64_t>(blockIdx.x / tiles_of_row) * kTileRows;
  const int64_t k0 = static_cast<int64_t>(blockIdx.x % tiles_of_row) * kTileColumns;

  Piece<T, kEight> x[kUnits][kPieces];
  int64_t row[kUnits], column[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int unit = u * teams + team;
    row[u] = m0 + (unit >> across_log2);
    column[u] = k0 + (static_cast<int64_t>(unit & ((1 << across_log2) - 1)) << (lanes_log2 + 4)) + lane * kEight;
    if (row[u] >= p.N || column[u] >= p.K) row[u] = -1;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      x[u][i] = row[u] < 0 ? Piece<T, kEight>{} : load_x<T, kEight>(p, row[u], column[u] + (i << lanes_log2) * kEight);
  }
  const Known known = Known::of<kCode>(p, &table);
  if (known.idle) return;

  const int64_t blocks_of_row = p.K >> (lanes_log2 + 4);
  bool refused = false;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    auto extent = Extent<T, kCode, kEight>::of_nothing();
    extent.add(x[u]);
    for (int distance = 1 << lanes_log2 >> 1; distance > 0; distance >>= 1) extent.exchange(distance);
    const Block b = extent.block(p, known);
    refused |= !b.finite;
    if constexpr (kCode == Element::int4) {
      if (lane == 0) scales[0][u * teams + team] = b.scale, scales[1][u * teams + team] = b.zero_point;
    } else {
      if (lane == 0 && row[u] >= 0)
        store_scale(p.scale, row[u] * blocks_of_row + (column[u] >> (lanes_log2 + 4)), b.scale, p.scale_type);
    }
    if (row[u] < 0) continue;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      store_codes<kCode, kEight>(p, row[u], column[u] + (i << lanes_log2) * kEight,
                                 codes_of<T, kCode, kEight>(b, x[u][i], known.look));
  }
  if (refused) p.status->refused = 1;
  if constexpr (kCode == Element::int4) {
    __syncthreads();
    for (int i = threadIdx.x; i < kUnits * teams; i += kThreads) {
      const int r = i % kTileRows, g = i / kTileRows, unit = (r << across_log2) + g;
      const int64_t m = m0 + r, group = (k0 >> (lanes_log2 + 4)) + g;
      if (m >= p.N || group >= blocks_of_row) continue;
      store_scale(p.scale, group * p.N + m, scales[0][unit], p.scale_type);
      store_scale(p.zero_point, group * p.N + m, scales[1][unit], p.scale_type);
    }
  }
}

// A block of any size to a block of threads. Two or three of those fit a multiprocessor by their registers, which is said, lest
// ptxas saves registers for a fourth and keeps a place in memory.
template <class T, Element kCode, int kCount>
__global__ void __launch_bounds__(kThreads, kCode == Element::lut4 ? 2 : 3)
    quantize_blocks(const __grid_constant__ QuantizeWeight p, uint32_t blocks_of_row) {
  __shared__ Table table;
  __shared__ Extent<T, kCode, kCount> partial[kThreads / kWarp];
  const int64_t n0 = static_cast<int64_t>(blockIdx.x / blocks_of_row) * p.block_n;
  const int64_t k0 = static_cast<int64_t>(blockIdx.x % blocks_of_row) * p.block_k;
  const uint32_t rows = static_cast<uint32_t>(min(p.block_n, p.N - n0));
  const uint32_t across = static_cast<uint32_t>(min(p.block_k, p.K - k0)) / kCount;
  const int64_t count = static_cast<int64_t>(rows) * across;
  const uint32_t down = blockDim.x / across, right = blockDim.x % across;  // from a thread's piece to its next

  struct Place {
    uint32_t row, column;
  };
  const auto place_of = [&](int64_t piece) -> Place {
    if (rows == 1) return {0, static_cast<uint32_t>(piece)};
    return {static_cast<uint32_t>(piece / across), static_cast<uint32_t>(piece % across)};
  };
  const auto next = [&](Place& at) {
    at.row += down, at.column += right;
    if (at.column >= across) at.column -= across, ++at.row;
  };
  constexpr int kKept = kMostKept<T, kCount>;
  Piece<T, kCount> kept[kKept];
  const auto load = [&](int64_t base) {
    Place at = place_of(base + threadIdx.x);
    int filled = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (at.row < rows && at.column < across)
        kept[i] = load_x<T, kCount>(p, n0 + at.row, k0 + static_cast<int64_t>(at.column) * kCount), ++filled;
      if (rows == 1)
        at.column += blockDim.x;
      else
        next(at);
    }
    return filled;
  };

  auto extent = Extent<T, kCode, kCount>::of_nothing();
  const int64_t step = static_cast<int64_t>(kKept) * blockDim.x;
  int64_t base = 0;
  int filled = load(0);
  const Known known = Known::of<kCode>(p, &table);
  if (known.idle) return;
  for (;;) {
    extent.add(kept, filled);
    if (count - base <= step) break;
    base += step;
    filled = load(base);
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) extent.exchange(distance);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = extent;
  __syncthreads();
  extent = partial[threadIdx.x % kWarp % (blockDim.x / kWarp)];
#pragma unroll
  for (int distance = kThreads / kWarp / 2; distance > 0; distance /= 2) extent.exchange(distance);
  const Block b = extent.block(p, known);
  if (threadIdx.x == 0) {
    const int64_t n = n0 / p.block_n, k = k0 / p.block_k;
    if (!b.finite) p.status->refused = 1;
    store_scale(p.scale, kCode == Element::int4 ? k * p.N + n : n * blocks_of_row + k, b.scale, p.scale_type);
    if constexpr (kCode == Element::int4) store_scale(p.zero_point, k * p.N + n, b.zero_point, p.scale_type);
  }
  for (;; base -= step, filled = load(base)) {
    Place at = place_of(base + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (i < filled)
        store_codes<kCode, kCount>(p, n0 + at.row, k0 + static_cast<int64_t>(at.column) * kCount,
                                   codes_of<T, kCode, kCount>(b, kept[i], known.look));
      if (rows == 1)
        at.column += blockDim.x;
      else
        next(at);
    }
    if (base == 0) break;
  }
}

// Fills in what the other kernels know of the whole weight. Threads take pieces of x one after the other.
template <class T, Element kCode, int kCount>
__global__ void __launch_bounds__(kThreads, 4) survey(const __grid_constant__ QuantizeWeight p, bool reads_all) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  volatile WeightStatusWords* const status = p.status;
  const bool is_int4 = kCode == Element::int4;
  if (is_int4 && p.symmetric < 0) {
    const int64_t zeros = p.N * (p.K / p.block_k);
    bool found = false;
    for (int64_t i = first; i < zeros && !found; i += threads)
      found = load_float(p.zero_point, i, p.scale_type) != 0 || status->asymmetric != 0;
    // One thread of a block writes: writes of all of them to one place wait for each other.
    if (__syncthreads_or(found) && threadIdx.x == 0) status->asymmetric = 1;
  }
  if (!p.keep && !reads_all) return;
  const uint32_t of_row = static_cast<uint32_t>(p.K / kCount);
  const int64_t pieces = p.N * of_row, blocks_of_row = (p.K - 1) / p.block_k + 1;
  const float whole = p.global_scale == nullptr ? 1 : *p.global_scale;
  const auto place_of = [&](int64_t i, int64_t& m, int64_t& k) {
    m = i <= 0xffffffff ? static_cast<uint32_t>(i) / of_row : i / of_row;
    k = (i - m * of_row) * kCount;
  };
  uint32_t absmax = 0;
  int64_t i = first;
  for (bool compares = p.keep; compares && i < pieces; i += threads) {
    if (status->differs != 0) break;
    int64_t m, k;
    place_of(i, m, k);
    const Piece<T, kCount> x = load_x<T, kCount>(p, m, k);
    if (reads_all) absmax = absmax_of<T>(x, absmax);
    float own[kCount];
    decode<kCode, kCount>(p.codes, i, p.table, own);
    const bool whole_pieces = p.block_k % kCount == 0;
    int64_t block = k / p.block_k;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (!whole_pieces) block = (k + j) / p.block_k;
      const int64_t at = is_int4 ? block * p.N + m : m / p.block_n * blocks_of_row + block;
      const float scale = load_scale(p.scale, at, p.scale_type) * whole;
      // As `dequantize` has it, rounded once: near 0 a sum of two roundings is far from it.
      const float value = is_int4 ? fmaf(own[j], scale, load_float(p.zero_point, at, p.scale_type)) : own[j] * scale;
      const float given = element<T>(x.w, j);
      compares = compares && fabsf(value - given) <= p.atol + p.rtol * fabsf(given);
    }
    if (!compares) status->differs = 1;
  }
  if (!reads_all) return;
  constexpr int kAtOnce = 4;
  for (; i < pieces; i += kAtOnce * threads) {
    Piece<T, kCount> x[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      int64_t m, k;
      place_of(min(i + j * threads, pieces - 1), m, k);
      x[j] = load_x<T, kCount>(p, m, k);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) absmax = absmax_of<T>(x[j], absmax);
  }
  absmax = __reduce_max_sync(~0u, absmax);
  if (threadIdx.x % kWarp != 0) return;
  if (absmax > status->largest) atomicMax(&p.status->largest, absmax);
  // Where scales of float16 may not hold it, or a range is infinite, the rule is more than this.
  const uint32_t most = bits<uint32_t>(p.scale_type == Element::fp16 ? 0x1p14f : 0x1p124f);
  if (absmax > (p.check ? most : kInfinity - 1)) status->refused = 1;
}

template <class T, Element kCode, int kCount>
cudaError_t launch(const QuantizeWeight& p, int multiprocessors, cudaStream_t stream) {
  const bool reads_all = p.check || p.global_scale != nullptr;
  if (p.keep || reads_all || (kCode == Element::int4 && p.symmetric < 0)) {
    const int64_t pieces = p.N * (p.K / kCount);
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(ceil_div(pieces, kThreads), (reads_all ? 8 : 2) * multiprocessors));
    survey<T, kCode, kCount><<<blocks, kThreads, 0, stream>>>(p, reads_all);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  if constexpr (kCount == kEight) {
    int lanes_log2 = 0;
    while (lanes_log2 < 5 && (int64_t{kPieces * kEight} << lanes_log2) < p.block_k) ++lanes_log2;
    if (p.block_n == 1 && p.K % p.block_k == 0 && p.block_k == int64_t{kPieces * kEight} << lanes_log2) {
      const int64_t tiles_of_row = ceil_div(p.K, kTileColumns), tiles = ceil_div(p.N, kTileRows) * tiles_of_row;
      if (tiles > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
      quantize_groups<T, kCode>
          <<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(p, lanes_log2, static_cast<uint32_t>(tiles_of_row));
      return cudaGetLastError();
    }
  }
  const int64_t blocks_of_row = ceil_div(p.K, p.block_k), blocks = ceil_div(p.N, p.block_n) * blocks_of_row;
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  constexpr int most = kMostKept<T, kCount>;
  const int64_t pieces = p.block_n * ceil_div(p.block_k, kCount);
  const int threads = pieces <= kWarp * most ? kWarp : pieces <= kThreads / 2 * most ? kThreads / 2 : kThreads;
  quantize_blocks<T, kCode, kCount>
      <<<static_cast<unsigned>(blocks), threads, 0, stream>>>(p, static_cast<uint32_t>(blocks_of_row));
  return cudaGetLastError();
}

template <class T, Element kCode>
cudaError_t launch_code(const QuantizeWeight& p, int multiprocessors, cudaStream_t stream) {
  const bool eights = p.K % kEight == 0 && p.block_k % kEight == 0 && p.pitch * sizeof(T) % 16 == 0 && is_aligned(p.x) &&
                      is_aligned(p.codes, is_nibble(kCode) ? kEight / 2 : kEight);
  if (eights) return launch<T, kCode, kEight>(p, multiprocessors, stream);
  return launch<T, kCode, is_nibble(kCode) ? 2 : 1>(p, multiprocessors, stream);
}

template <class T>
cudaError_t launch_from(const QuantizeWeight& p, int multiprocessors, cudaStream_t stream) {
  switch (p.code) {
    case Element::int4: return launch_code<T, Element::int4>(p, multiprocessors, stream);
    case Element::lut4: return launch_code<T, Element::lut4>(p, multiprocessors, stream);
    case Element::int8: return launch_code<T, Element::int8>(p, multiprocessors, stream);
    case Element::e4m3: return launch_code<T, Element::e4m3>(p, multiprocessors, stream);
    default: return launch_code<T, Element::e5m2>(p, multiprocessors, stream);
  }
}

}  // namespace

bool quantize_weight_takes(const QuantizeWeight& p) {
  return p.K < std::numeric_limits<int>::max() && (!is_nibble(p.code) || (p.block_k % 2 == 0 && p.K % 2 == 0));
}

cudaError_t launch_quantize_weight(const QuantizeWeight& p, int multiprocessors, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(p.status, 0, sizeof(WeightStatusWords), stream);
  if (error != cudaSuccess || p.N == 0) return error;
  switch (p.type) {
    case Element::bf16: return launch_from<__nv_bfloat16>(p, multiprocessors, stream);
    case Element::fp16: return launch_from<__half>(p, multiprocessors, stream);
    default: return launch_from<float>(p, multiprocessors, stream);
  }
}

}  // namespace aoext::cuda
