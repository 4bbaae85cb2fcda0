// Dynamic quantisation: of each row of x [M, K]
//
//   scale = max |x| / limit        (1 for a row of zeros, at least the smallest normal number, NaN where x has Inf or NaN)
//   value = x / scale              in float32, rounded to int8, e4m3 or e5m2, and 0 where scale is NaN
//
// Bound by memory: 2 K or 4 K bytes of a row in, K out, or 2 K where values are wide. A row belongs to a team of threads, a warp
// or a whole block. A thread keeps 4 pieces of 16 bytes of it in registers, or 8 of a row that would take more than 512 threads
// otherwise, so that a team of 1024 reads 128 KB once; what is longer is read again, from its end back to its start, from L2.
// Neighbouring threads read and write neighbouring pieces. Teams are no larger than that needs: smaller ones synchronise faster,
// and more run at once.
//
// The arithmetic is in quantize_rowwise.cuh.
#include "cuda/kernels/quantize_rowwise.h"

#include <algorithm>
#include <limits>

#include "cuda/kernels/chunk_sums.cuh"
#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/quantize_rowwise.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using namespace quantize;

constexpr int kWarp = 32, kMaxTeam = 1024, kWarpTeams = 4;  // the last: rows of a block, where a team is a warp

// What values are stored as: V is uint8_t for codes, or the 16-bit type that they are widened to.
template <class V, Element kOutput, int kCount>
__device__ __forceinline__ void store(V* values, const Words<(kCount + 3) / 4>& codes) {
  if constexpr (sizeof(V) == 1) {
    if constexpr (kCount == 1)
      *values = static_cast<uint8_t>(codes.w[0]);
    else
      *reinterpret_cast<Words<kCount / 4>*>(values) = codes;
  } else if constexpr (kCount == 1) {
    *values = bits<V>(static_cast<uint16_t>(widened_pair<V, kOutput>(codes.w[0], 0)));
  } else {
    Words<kCount / 2> wide;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) wide.w[i] = widened_pair<V, kOutput>(codes.w[i / 2], i % 2);
    *reinterpret_cast<Words<kCount / 2>*>(values) = wide;
  }
}

// The sums of chunks of a row, from the codes of the pieces that a warp has of it: `at` is this thread's, of `count`.
template <Element kOutput, int kCount>
__device__ __forceinline__ void sum_chunks(const ChunkSums& s, int64_t m, uint32_t at, uint32_t count,
                                           const Words<(kCount + 3) / 4>& codes) {
  const uint32_t lanes = s.chunk / kCount;
  int sum = 0;
#pragma unroll
  for (const uint32_t word : codes.w) sum += sum_of_codes<kOutput>(word);
  sum = sum_over_lanes(at < count ? sum : 0, lanes);
  if (at % lanes == 0 && at < count) store_sum<kOutput>(s, m, at / lanes, sum);
}

// A team is a row of the block's threads: the whole block, or a warp where the block has several. A piece is kCount elements; K
// is a multiple of that, x and values start at boundaries of as many. A thread keeps kKept of them.
template <class T, class V, int kCount, int kKept, Element kOutput>
__global__ void __launch_bounds__(kMaxTeam) quantize_rowwise_kernel(const __grid_constant__ QuantizeRowwise p) {
  start_next_kernel();  // at once, so that a product's blocks are there when x is
  wait_for_last_kernel();
  const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (m >= p.M) return;  // of a team that is a warp
  const T* const x = static_cast<const T*>(p.x) + m * p.K;
  V* const values = static_cast<V*>(p.values) + m * p.K;
  const uint32_t count = static_cast<uint32_t>(p.K / kCount), team = blockDim.x;

  Piece<T, kCount> kept[kKept];
  const auto load = [&](uint32_t base) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const uint32_t at = base + i * team + threadIdx.x;
      kept[i] = at < count ? load_piece<T, kCount>(x, at) : Piece<T, kCount>{};
    }
  };
  uint32_t absmax = 0, base = 0;
  for (;; base += kKept * team) {
    load(base);
#pragma unroll
    for (int i = 0; i < kKept; ++i) absmax = absmax_of<T>(kept[i], absmax);
    if (count - base <= kKept * team) break;
  }
  absmax = __reduce_max_sync(0xffffffff, absmax);
  if (team > kWarp) {
    __shared__ uint32_t partial[kMaxTeam / kWarp];
    const uint32_t lane = threadIdx.x % kWarp;
    if (lane == 0) partial[threadIdx.x / kWarp] = absmax;
    __syncthreads();
    absmax = __reduce_max_sync(0xffffffff, lane < team / kWarp ? partial[lane] : 0);
  }

  const Row<kOutput> row(absmax, p.power_of_two);
  if (threadIdx.x == 0) p.scales[m] = row.stored_scale();
  while (true) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const uint32_t at = base + i * team + threadIdx.x;
      const auto codes = row.template codes<T, kCount>(kept[i]);
      if (at < count) store<V, kOutput, kCount>(values + static_cast<int64_t>(at) * kCount, codes);
      if constexpr (kCount > 1 && kOutput != Element::e5m2)
        if (p.sums.sums != nullptr) sum_chunks<kOutput, kCount>(p.sums, m, at, count, codes);
    }
    if (base == 0) break;
    base -= kKept * team;
    load(base);
  }
  if constexpr (kCount > 1 && kOutput != Element::e5m2)
    if (p.sums.sums != nullptr)
      for (int64_t chunk = (p.K - 1) / p.sums.chunk + 1 + threadIdx.x; chunk < p.sums.lines * kSumChunks; chunk += team)
        store_sum<kOutput>(p.sums, m, chunk, 0);
}

template <class T, class V, int kCount, int kKept, Element kOutput>
cudaError_t launch(const QuantizeRowwise& p, cudaStream_t stream) {
  const int64_t threads = ceil_div(p.K, kWarp * kCount * kKept) * kWarp;
  const auto team = static_cast<unsigned>(std::min<int64_t>(threads, kMaxTeam));
  const unsigned teams = team == kWarp ? kWarpTeams : 1;
  const int64_t blocks = ceil_div(p.M, teams);
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(team, teams), 0, stream, 1, Overlap::after_ours};
  return launch(quantize_rowwise_kernel<T, V, kCount, kKept, kOutput>, grid, p);
}

template <class T>
constexpr int kPiece = 16 / sizeof(T);  // elements of a piece of 16 bytes

template <class T>
bool takes_pieces(const QuantizeRowwise& p) {
  return p.K % kPiece<T> == 0 && is_aligned(p.x) && is_aligned(p.values, kPiece<T> * (p.wide ? 2 : 1));
}

template <class T, class V, Element kOutput>
cudaError_t launch_to(const QuantizeRowwise& p, cudaStream_t stream) {
  constexpr int kCount = kPiece<T>;
  if (!takes_pieces<T>(p)) return launch<T, V, 1, 16, kOutput>(p, stream);
  // Large teams of 4 pieces a thread are one to a multiprocessor: nothing is read while they store.
  return p.K <= kMaxTeam / 2 * 4 * kCount ? launch<T, V, kCount, 4, kOutput>(p, stream)
                                          : launch<T, V, kCount, 8, kOutput>(p, stream);
}

template <class T, Element kOutput>
cudaError_t launch_to(const QuantizeRowwise& p, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2 && kOutput != Element::e5m2)
    if (p.wide) return launch_to<T, T, kOutput>(p, stream);
  return p.wide ? cudaErrorNotSupported : launch_to<T, uint8_t, kOutput>(p, stream);
}

template <class T>
cudaError_t launch_from(const QuantizeRowwise& p, cudaStream_t stream) {
  switch (p.output) {
    case Element::int8: return launch_to<T, Element::int8>(p, stream);
    case Element::e4m3: return launch_to<T, Element::e4m3>(p, stream);
    default: return launch_to<T, Element::e5m2>(p, stream);
  }
}

}  // namespace

bool quantize_rowwise_sums(const QuantizeRowwise& p) {
  return p.output != Element::e5m2 && (p.type == Element::fp32 ? takes_pieces<float>(p) : takes_pieces<__half>(p));
}

cudaError_t launch_quantize_rowwise(const QuantizeRowwise& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_from<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_from<__half>(p, stream);
    default: return launch_from<float>(p, stream);
  }
}

}  // namespace aoext::cuda
