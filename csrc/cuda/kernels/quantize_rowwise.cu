// Dynamic quantisation: of each row of x [M, K]
//
//   scale = max |x| / limit        (1 for a row of zeros, at least the smallest normal number, NaN where x has Inf or NaN)
//   value = x / scale              in float32, rounded to int8, e4m3 or e5m2, and 0 where scale is NaN
//
// Bound by memory: 2 K or 4 K bytes of a row in, K out. A row belongs to a team of threads, a warp or a whole block. A thread
// keeps 4 pieces of 16 bytes of it in registers, or 8 of a row that would take more than 512 threads otherwise, so that a team
// of 1024 reads 128 KB once; what is longer is read again, from its end back to its start, from L2. Neighbouring threads read
// and write neighbouring pieces. Teams are no larger than that asks for: smaller ones meet sooner, and more run at once.
//
// The bits are those of every other device (DESIGN.md).
#include "cuda/kernels/quantize_rowwise.h"

#include <algorithm>
#include <limits>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

constexpr int kWarp = 32, kMaxTeam = 1024, kWarpTeams = 4;  // the last: rows of a block, where a team is a warp
constexpr uint32_t kInfinity = 0x7f800000;

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t w[kWords];
};

// kCount elements of a row; where that is one of 16 bits, the upper half is 0.
template <class T, int kCount>
using Piece = Words<kCount == 1 ? 1 : kCount * static_cast<int>(sizeof(T)) / 4>;

template <class T, int kCount>
__device__ __forceinline__ Piece<T, kCount> load_piece(const T* row, uint32_t i) {
  if constexpr (kCount * sizeof(T) == 2)
    return {{reinterpret_cast<const uint16_t*>(row)[i]}};
  else
    return reinterpret_cast<const Piece<T, kCount>*>(row)[i];
}

// Element j of those that words hold.
template <class T>
__device__ __forceinline__ float element(const uint32_t* words, int j) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(words[j]);
  const uint32_t word = words[j / 2];
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(__ushort_as_half(static_cast<uint16_t>(j % 2 == 0 ? word : word >> 16)));
  else
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000);
}

// Of a piece and `other`, as the bits of a float, where NaN is above infinity.
template <class T, int kWords>
__device__ __forceinline__ uint32_t absmax_of(const Words<kWords>& piece, uint32_t other) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) other = max(other, piece.w[i] & 0x7fffffff);
    return other;
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Words<kWords> magnitudes;
#pragma unroll
    for (int i = 0; i < kWords; ++i) magnitudes.w[i] = piece.w[i] & 0x7fff7fff;
    auto* const pairs = reinterpret_cast<Pair*>(magnitudes.w);
#pragma unroll
    for (int i = 1; i < kWords; ++i) pairs[0] = __hmax2_nan(pairs[0], pairs[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) other = max(other, __float_as_uint(element<T>(magnitudes.w, j)));
    return other;
  }
}

template <Element kOutput>
constexpr float kLimit = kOutput == Element::int8   ? 127.0f
                         : kOutput == Element::e4m3 ? 448.0f
                                                    : 57344.0f;

// The scale of a row whose largest magnitude is finite.
template <Element kOutput>
__device__ __forceinline__ float row_scale(float absmax) {
  constexpr float kSmallestNormal = 0x1p-126f;
  return absmax == 0 ? 1.0f : fmaxf(__fdiv_rn(absmax, kLimit<kOutput>), kSmallestNormal);
}

// x / scale as IEEE rounds it, wherever that is above 2^-100: x times a power of two, then by a number in [1, 2).
//
// The power is exact for such x, subnormal ones too. With the divisor's reciprocal to nearest, one correction is enough: all
// numerators and divisors whose quotient comes near the middle of two floats were tried (tools/division_cases.cpp). Zeros keep
// their sign: the remainder is taken as q b - t, which is +0 where it is 0.
struct Division {
  float power, divisor, reciprocal;

  __device__ __forceinline__ explicit Division(float scale) {
    const uint32_t bits = __float_as_uint(scale);
    power = __uint_as_float((254u << 23) - (bits & kInfinity));
    divisor = __uint_as_float((bits & 0x007fffff) | 0x3f800000);
    reciprocal = __frcp_rn(divisor);
  }

  __device__ __forceinline__ float operator()(float x) const {
    const float t = __fmul_rn(x, power), q = __fmul_rn(t, reciprocal);
    return __fmaf_rn(-__fmaf_rn(q, divisor, -t), reciprocal, q);
  }
};

// float32 of a magnitude that rounds to a finite one to float8, to nearest, ties to even.
//
// Adding the power of two whose ulp is the format's step at that magnitude rounds as the format does; below the smallest
// normal number the step stays. What the sum has more than that power counts the steps.
template <Element kOutput>
__device__ __forceinline__ uint32_t encode_float8(float v) {
  constexpr int kDropped = kOutput == Element::e4m3 ? 20 : 21;  // bits of a float32's mantissa
  constexpr uint32_t kSmallest = (127u - (kOutput == Element::e4m3 ? 6 : 14)) << 23;
  const uint32_t exponent = max(__float_as_uint(v) & kInfinity, kSmallest), anchor = exponent + (kDropped << 23);
  const uint32_t steps = __float_as_uint(__fadd_rn(fabsf(v), __uint_as_float(anchor))) - anchor;
  return (steps + ((exponent - kSmallest) >> kDropped)) | (__float_as_uint(v) >> 31 << 7);
}

// Four codes. A quotient is at most two roundings of float32 above the limit, which rounding to the format takes back.
template <Element kOutput>
__device__ __forceinline__ uint32_t encode(const float (&q)[4]) {
  if constexpr (kOutput == Element::int8) {
    constexpr float kUlpIsOne = 0x1.8p23f;
    uint32_t low[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) low[j] = __float_as_uint(__fadd_rn(q[j], kUlpIsOne));
    return __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
  } else {
#if __CUDA_ARCH__ >= 890
    uint32_t codes;
    if constexpr (kOutput == Element::e4m3)
      asm("{.reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
          " mov.b32 %0, {low, high};\n}"
          : "=r"(codes)
          : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]));
    else
      asm("{.reg .b16 low, high;\n cvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\n cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
          " mov.b32 %0, {low, high};\n}"
          : "=r"(codes)
          : "f"(q[0]), "f"(q[1]), "f"(q[2]), "f"(q[3]));
    return codes;
#else
    uint32_t codes = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes |= encode_float8<kOutput>(q[j]) << 8 * j;
    return codes;
#endif
  }
}

// The codes of a piece, and of nothing but `mask`.
template <class T, int kCount, Element kOutput>
__device__ __forceinline__ void store(uint8_t* values, const Piece<T, kCount>& piece, const Division& quotient, uint32_t mask) {
  Words<(kCount + 3) / 4> codes;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    float q[4] = {};
#pragma unroll
    for (int j = 0; j < 4 && j < kCount; ++j) q[j] = quotient(element<T>(piece.w, i + j));
    codes.w[i / 4] = encode<kOutput>(q) & mask;
  }
  if constexpr (kCount == 1)
    *values = static_cast<uint8_t>(codes.w[0]);
  else
    *reinterpret_cast<Words<kCount / 4>*>(values) = codes;
}

// A team is a row of the block's threads: the whole block, or a warp where the block has several. A piece is kCount elements; K
// is a multiple of that, x and values start at boundaries of as many. A thread keeps kKept of them.
template <class T, int kCount, int kKept, Element kOutput>
__global__ void __launch_bounds__(kMaxTeam) quantize_rowwise_kernel(const __grid_constant__ QuantizeRowwise p) {
  wait_for_last_kernel();
  start_next_kernel();
  const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (m >= p.M) return;  // of a team that is a warp
  const T* const x = static_cast<const T*>(p.x) + m * p.K;
  uint8_t* const values = static_cast<uint8_t*>(p.values) + m * p.K;
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

  const bool finite = absmax < kInfinity;
  const float scale = row_scale<kOutput>(__uint_as_float(absmax));
  const Division quotient(scale);
  if (threadIdx.x == 0) p.scales[m] = finite ? scale : __uint_as_float(0x7fc00000);
  while (true) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const uint32_t at = base + i * team + threadIdx.x;
      if (at < count)
        store<T, kCount, kOutput>(values + static_cast<int64_t>(at) * kCount, kept[i], quotient, finite ? 0xffffffff : 0);
    }
    if (base == 0) break;
    base -= kKept * team;
    load(base);
  }
}

template <class T, int kCount, int kKept, Element kOutput>
cudaError_t launch(const QuantizeRowwise& p, cudaStream_t stream) {
  const int64_t threads = ceil_div(p.K, kWarp * kCount * kKept) * kWarp;
  const auto team = static_cast<unsigned>(std::min<int64_t>(threads, kMaxTeam));
  const unsigned teams = team == kWarp ? kWarpTeams : 1;
  const int64_t blocks = ceil_div(p.M, teams);
  if (blocks > std::numeric_limits<int>::max()) return cudaErrorInvalidConfiguration;
  const Grid grid{dim3(static_cast<unsigned>(blocks)), dim3(team, teams), 0, stream, 1, Overlap::after_ours};
  return launch(quantize_rowwise_kernel<T, kCount, kKept, kOutput>, grid, p);
}

template <class T, Element kOutput>
cudaError_t launch_to(const QuantizeRowwise& p, cudaStream_t stream) {
  constexpr int kCount = 16 / sizeof(T);
  const bool wide = p.K % kCount == 0 && is_aligned(p.x) && is_aligned(p.values, kCount);
  if (!wide) return launch<T, 1, 16, kOutput>(p, stream);
  // Large teams of 4 pieces a thread are one to a multiprocessor: nothing is read while they store.
  return p.K <= kMaxTeam / 2 * 4 * kCount ? launch<T, kCount, 4, kOutput>(p, stream) : launch<T, kCount, 8, kOutput>(p, stream);
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

cudaError_t launch_quantize_rowwise(const QuantizeRowwise& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::bf16: return launch_from<__nv_bfloat16>(p, stream);
    case Element::fp16: return launch_from<__half>(p, stream);
    default: return launch_from<float>(p, stream);
  }
}

}  // namespace aoext::cuda
