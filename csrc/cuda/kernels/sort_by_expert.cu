// A counting sort. Each warp has a range of pairs, and counts those of each expert in shared memory; all threads turn the counts
// into places, expert by expert and for each of them warp by warp; and each warp goes through its range again and stores where
// its pairs go. Lanes of one expert find each other by a match, so that pairs stay in their order, and nothing is added in an
// order that may change.
//
// A layer that decodes has 8 to 512 pairs and up to 256 experts: a range is one step, and what counts is the launch. The counts
// of 32 warps and 256 experts are 33 KB; of more experts fewer warps count.
#include "cuda/kernels/sort_by_expert.h"

#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kSharedMemory = 96 << 10;  // bytes that a block has on every GPU

// Words: of the counts of each warp that counts, where each expert's pairs begin, and what warps add up.
int shared_words(int warps, int experts) { return (warps + 1) * (experts + 1) + kWarps; }

// body(pair, id, lanes of the same id, all lanes) for a warp's range, 32 pairs at a time; whoever has no expert has the id behind
// the last.
template <class Id, class Body>
__device__ __forceinline__ void for_each_pair(const SortByExpert& p, int begin, int end, Body&& body) {
  for (int first = begin; first < end; first += 32) {
    const int pair = first + threadIdx.x % 32;
    const unsigned inside = __ballot_sync(~0u, pair < end);
    if (pair >= end) break;
    const Id expert = static_cast<const Id*>(p.expert)[pair];
    const int id = expert >= 0 && expert < p.experts ? static_cast<int>(expert) : p.experts;
    body(pair, id, __match_any_sync(inside, id), inside);
    __syncwarp(inside);
  }
}

// The sums of all lanes before this one.
__device__ __forceinline__ int sum_before(int v) {
  int through = v;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int lower = __shfl_up_sync(~0u, through, distance);
    if (threadIdx.x % 32 >= distance) through += lower;
  }
  return through - v;
}

template <class Id>
__global__ void __launch_bounds__(kThreads, 1) sort_by_expert(const __grid_constant__ SortByExpert p, int counting) {
  extern __shared__ int shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, ids = p.experts + 1;
  int *const counts = shared, *const begins = shared + counting * ids, *const of_warps = begins + ids;  // counts: [warp][id]
  const int range = (p.pairs + counting * 32 - 1) / (counting * 32) * 32;
  const int begin = min(warp * range, p.pairs), end = warp < counting ? min(begin + range, p.pairs) : begin;
  int* const own = counts + min(warp, counting - 1) * ids;
  for (int i = threadIdx.x; i < counting * ids; i += kThreads) counts[i] = 0;
  __syncthreads();
  wait_for_last_kernel();
  start_next_kernel();
  const unsigned before = (1u << lane) - 1;
  for_each_pair<Id>(p, begin, end, [&](int, int id, unsigned same, unsigned) {
    if ((same & before) == 0) own[id] += __popc(same);
  });
  __syncthreads();

  // A thread has an id in each round; the last is that of no expert.
  int all = 0;  // pairs of the ids before
  for (int first = 0; first < ids; first += kThreads) {
    const int id = first + threadIdx.x;
    int total = 0;
    for (int w = 0; id < ids && w < counting; ++w) {
      const int count = counts[w * ids + id];
      counts[w * ids + id] = total;
      total += count;
    }
    const int in_warp = sum_before(total);
    if (lane == 31) of_warps[warp] = in_warp + total;
    __syncthreads();
    const int lower = sum_before(of_warps[lane]), of_lower = __shfl_sync(~0u, lower, warp);
    const int round = __shfl_sync(~0u, lower + of_warps[lane], 31);
    if (id < ids) begins[id] = all + of_lower + in_warp;
    if (id < p.experts) p.offsets[id] = all + of_lower + in_warp + total;
    all += round;
    __syncthreads();
  }

  for_each_pair<Id>(p, begin, end, [&](int pair, int id, unsigned same, unsigned lanes) {
    const int place = begins[id] + own[id] + __popc(same & before);
    __syncwarp(lanes);
    if ((same & before) == 0) own[id] += __popc(same);
    p.order[place] = pair;
    p.place[pair] = place;
  });
}

}  // namespace

cudaError_t launch_sort_by_expert(const SortByExpert& p, cudaStream_t stream) {
  const int most = (kSharedMemory / 4 - shared_words(0, p.experts)) / (p.experts + 1);
  const int counting = std::clamp(static_cast<int>(ceil_div(p.pairs, 32)), 1, std::min(most, kWarps));
  const auto bytes = static_cast<size_t>(shared_words(counting, p.experts)) * sizeof(int);
  const Grid grid{dim3(1), dim3(kThreads), bytes, stream, 1, Overlap::after_ours};
  return launch(p.wide ? sort_by_expert<int64_t> : sort_by_expert<int32_t>, grid, p, counting);
}

}  // namespace aoext::cuda
