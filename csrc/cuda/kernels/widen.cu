// A thread takes 8 numbers, of which it writes 16 bytes, kPieces times: it reads all of them before it writes.
#include "cuda/kernels/widen.h"

#include <limits>

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kThreads = 128, kCount = 8, kPieces = 4;

template <class T, Element W>
__global__ void __launch_bounds__(kThreads) widen(const __grid_constant__ Widen p) {
  start_next_kernel();
  wait_for_last_kernel();
  const auto* const from = static_cast<const uint8_t*>(p.from);
  auto* const to = static_cast<uint16_t*>(p.to);
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kPieces * kThreads + threadIdx.x) * kCount;
  const auto place = [&](int piece) { return first + piece * kThreads * kCount; };
  uint2 words[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i)
    if (place(i) + kCount <= p.count) words[i] = *reinterpret_cast<const uint2*>(from + place(i));
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (place(i) + kCount <= p.count) {
      const uint2 low = widened<T, W>(words[i].x), high = widened<T, W>(words[i].y);
      *reinterpret_cast<uint4*>(to + place(i)) = make_uint4(low.x, low.y, high.x, high.y);
    } else {
      for (int64_t j = place(i); j < p.count; ++j) to[j] = static_cast<uint16_t>(widened_pair<T, W>(from[j], 0));
    }
  }
}

template <Element W>
cudaError_t launch_from(const Widen& p, cudaStream_t stream) {
  const int64_t blocks = ceil_div(p.count, kThreads * kCount * kPieces);
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, 1, Overlap::after_ours};
  return launch(p.output == Element::bf16 ? widen<__nv_bfloat16, W> : widen<__half, W>, grid, p);
}

}  // namespace

cudaError_t launch_widen(const Widen& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::int8: return launch_from<Element::int8>(p, stream);
    case Element::e4m3: return launch_from<Element::e4m3>(p, stream);
    default: return launch_from<Element::e5m2>(p, stream);
  }
}

}  // namespace aoext::cuda
