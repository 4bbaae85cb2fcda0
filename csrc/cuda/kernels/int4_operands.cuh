// How int4_ring.cuh, int4_decode.cuh and int4_batch.cuh make operands of tensor cores of nibbles, and of x what is multiplied by
// them.
//
// The subnormal trick, nibbles to bf16 in five operations for eight: u = q + 8 in the low bits of a bf16 is the subnormal number
// u 2^-133, and four bits higher 16 u 2^-133 (the spacing of subnormal numbers continues through the first binade); the tensor
// cores take both exactly and at full rate. So `w & 0x000f000f ^ 0x00080008` is an operand, likewise 0x00f000f0, and both again
// for w >> 8. x is scaled up by a power of two per (m, 128 k), odd k by 1/16 of that, both exact: X' = 2^e x, and
// y += s 2^-e (sum u X') + (z - 8s) sum x. fp16 takes q itself, which is a subtraction more: its subnormal numbers would cost ten
// of the bits to which the tensor cores align.
//
// Lane (g = lane / 4, t = lane % 4) has bytes 16t..16t+15 of output channels 2g and 2g + 1 of a k-tile of 128 k, which are rows g
// and g + 8 of mma's A operand, so that the scales of its two rows are neighbours in memory.
#pragma once

#include <cstdint>

#include "cuda/kernels/numbers.cuh"
#include "cuda/kernels/ptx.cuh"

namespace aoext::cuda::int4_operands {

constexpr int kTileK = 128;  // k of a k-tile
constexpr int kTileN = 16;   // output channels of a warp's tile

__device__ __forceinline__ uint32_t divide(uint32_t n, uint32_t d, uint32_t magic) { return d == 1 ? n : __umulhi(n, magic); }

__device__ __forceinline__ float pow2(int e) { return __int_as_float((e + 127) << 23); }  // -127 < e; 128 gives Inf

template <Element>
struct Number;

template <>
struct Number<Element::bf16> {
  using type = __nv_bfloat16;
  using pair = __nv_bfloat162;
  static constexpr int kMantissa = 7, kExponentBias = 127;
  static constexpr int kUlp = -133;  // exponent of the smallest subnormal number
  static constexpr int kTop = 126;   // X' reaches 2^(kTop + 1)
  static constexpr int kMaxShift = 127;
  static constexpr int kOne = -16;        // exponent of the `one` that sums X', small enough for 128 of them
  static constexpr bool kNormal = false;  // operands are subnormal, (q + 8) 2^kUlp
  static __device__ __forceinline__ float2 unpack(uint32_t v) {
    return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
  }
};

template <>
struct Number<Element::fp16> {
  using type = __half;
  using pair = __half2;
  static constexpr int kMantissa = 10, kExponentBias = 15;
  static constexpr int kUlp = 0, kTop = 0, kMaxShift = 0, kOne = 0;
  static constexpr bool kNormal = true;  // operands are q
  static __device__ __forceinline__ float2 unpack(uint32_t v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }
};

template <typename N>
__device__ __forceinline__ uint32_t power_pair(int e) {  // 2^e twice
  return static_cast<uint32_t>((e + N::kExponentBias) << N::kMantissa) * 0x10001u;
}

template <typename N>
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  typename N::pair r = __hmul2(*reinterpret_cast<typename N::pair*>(&a), *reinterpret_cast<typename N::pair*>(&b));
  return *reinterpret_cast<uint32_t*>(&r);
}

__device__ __forceinline__ uint32_t half_fma(uint32_t a, uint32_t b, uint32_t c) {
  __half2 r = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b), *reinterpret_cast<__half2*>(&c));
  return *reinterpret_cast<uint32_t*>(&r);
}

// Scales of two neighbouring rows.
template <Element S>
struct ScalePair {
  static constexpr int kBytes = 2;  // of one
  uint32_t bits;
  __device__ __forceinline__ void load(const uint8_t* p) { asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(p)); }
  // What a copy brought to shared memory, or what lies at any alignment.
  __device__ __forceinline__ void read_shared(uint32_t address) { bits = load_shared_word(address); }
  __device__ __forceinline__ void read(const void* p, int64_t i, int to_next) {
    const auto* q = static_cast<const uint16_t*>(p) + i;
    bits = q[0] | static_cast<uint32_t>(q[to_next]) << 16;
  }
  __device__ __forceinline__ ScalePair from(int lane) const { return {__shfl_sync(~0u, bits, lane)}; }
  __device__ __forceinline__ float2 get() const { return Number<S>::unpack(bits); }
};
template <>
struct ScalePair<Element::fp32> {
  static constexpr int kBytes = 4;
  float a, b;
  __device__ __forceinline__ void load(const uint8_t* p) {
    const auto* q = reinterpret_cast<const float*>(p);
    a = __ldg(q), b = __ldg(q + 1);
  }
  __device__ __forceinline__ void read_shared(uint32_t address) {
    const float2 v = load_shared_pair(address);
    a = v.x, b = v.y;
  }
  __device__ __forceinline__ void read(const void* p, int64_t i, int to_next) {
    const auto* q = static_cast<const float*>(p) + i;
    a = q[0], b = q[to_next];
  }
  __device__ __forceinline__ ScalePair from(int lane) const { return {__shfl_sync(~0u, a, lane), __shfl_sync(~0u, b, lane)}; }
  __device__ __forceinline__ float2 get() const { return {a, b}; }
};

// The exponent, as in its bits, of the largest |x| in a k-tile of which each of four lanes holds `v`; NaN's is that of infinity.
template <typename N>
__device__ __forceinline__ int top_exponent(const uint4 (&v)[4]) {
  constexpr uint32_t abs = 0x7fff7fffu;
  uint32_t top = 0;  // |x| as integers, which orders them
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    top = __vimax3_s16x2(top, v[j].x & abs, v[j].y & abs);
    top = __vimax3_s16x2(top, v[j].z & abs, v[j].w & abs);
  }
  top = __vmaxs2(top, __shfl_xor_sync(~0u, top, 1));
  top = __vmaxs2(top, __shfl_xor_sync(~0u, top, 2));
  return static_cast<int>(max(top & 0xffffu, top >> 16)) >> N::kMantissa;
}

// How far x of a k-tile, of which each of four lanes holds `v`, is scaled up. An |x| of 2^121 or more, whose 2^-e no float holds,
// counts as infinite.
template <typename N>
struct ScaledUp {
  int exponent, shift;

  __device__ __forceinline__ explicit ScaledUp(const uint4 (&v)[4])
      : exponent(top_exponent<N>(v)), shift(N::kNormal ? 0 : min(N::kTop + N::kExponentBias - max(exponent, 1), N::kMaxShift)) {}

  // 2^-e, or NaN where x is not finite.
  __device__ __forceinline__ float back() const {
    if (exponent == 2 * N::kExponentBias + 1) return __int_as_float(0x7fffffff);
    return N::kNormal ? 1.f : pow2(min(-N::kUlp - shift, 128));
  }
};

// Eight k of x to X' in the order of a word's nibbles, the even and then the odd ones.
template <typename N>
__device__ __forceinline__ uint4 arranged(const uint4& v, uint32_t even, uint32_t odd) {
  const uint4 b = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.x, v.z, 0x7632),
                   __byte_perm(v.y, v.w, 0x7632)};
  if constexpr (N::kNormal) return b;
  return {multiply<N>(b.x, even), multiply<N>(b.y, even), multiply<N>(b.z, odd), multiply<N>(b.w, odd)};
}

// And their sum, times 2^kOne, to the sums of all lanes' columns.
template <typename N>
__device__ __forceinline__ uint4 arranged(const uint4& v, uint32_t even, uint32_t odd, float (&sum)[4]) {
  constexpr uint32_t one = static_cast<uint32_t>((N::kOne + N::kExponentBias) << N::kMantissa) * 0x10001u;
  constexpr uint32_t of_odd = N::kNormal ? one : one + (4u << N::kMantissa) * 0x10001u;  // sixteen
  const uint4 b = arranged<N>(v, even, odd);
  mma<typename N::type>(sum, {one, one, one, one}, b.x, b.y);
  mma<typename N::type>(sum, {of_odd, of_odd, of_odd, of_odd}, b.z, b.w);
  return b;
}

// The sum of a lane's eight k.
template <typename N>
__device__ __forceinline__ float lane_sum(const uint4& v) {
  const float2 a = N::unpack(v.x), b = N::unpack(v.y), c = N::unpack(v.z), d = N::unpack(v.w);
  return ((a.x + a.y) + (b.x + b.y)) + ((c.x + c.y) + (d.x + d.y));
}

// Operands of two rows' words: the even k, then the odd ones.
template <typename N>
__device__ __forceinline__ void operands(uint32_t upper, uint32_t lower, uint32_t (&even)[4], uint32_t (&odd)[4]) {
  const uint32_t raw[4] = {upper, lower, upper >> 8, lower >> 8};
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if constexpr (N::kNormal) {
      even[r] = half_fma(and_xor<0x000f000f, 0x64086408>(raw[r]), 0x3c003c00, 0xe408e408);  // 1024 + u, - 1032
      odd[r] = half_fma(and_xor<0x00f000f0, 0x64806480>(raw[r]), 0x2c002c00, 0xd480d480);   // (1024 + 16 u) / 16 - 72
    } else {
      even[r] = and_xor<0x000f000f, 0x00080008>(raw[r]);
      odd[r] = and_xor<0x00f000f0, 0x00800080>(raw[r]);
    }
  }
}

// Where word j of lane t of a k-tile lies once its groups of `Sub` k are spread over the four lanes that mma sums over.
template <int Sub>
__device__ __forceinline__ int word_k(int t, int j) {
  if constexpr (Sub == 128) return 32 * t + 8 * j;
  if constexpr (Sub == 64) return 32 * (2 * (j >> 1) + (t & 1)) + 8 * (2 * (t >> 1) + (j & 1));
  return 32 * j + 8 * t;
}

template <int Sub>
__device__ __forceinline__ void spread(uint4& v, int t) {  // from 16 consecutive bytes a lane to word_k's order
  if constexpr (Sub == 32) {
    const bool odd = t & 1;
    const uint32_t p = __shfl_xor_sync(~0u, odd ? v.x : v.y, 1), q = __shfl_xor_sync(~0u, odd ? v.z : v.w, 1);
    v = odd ? uint4{p, v.y, q, v.w} : uint4{v.x, p, v.z, q};
  }
  if constexpr (Sub <= 64) {
    const bool high = t & 2;
    const uint32_t p = __shfl_xor_sync(~0u, high ? v.x : v.z, 2), q = __shfl_xor_sync(~0u, high ? v.y : v.w, 2);
    v = high ? uint4{p, q, v.z, v.w} : uint4{v.x, v.y, p, q};
  }
}

}  // namespace aoext::cuda::int4_operands
