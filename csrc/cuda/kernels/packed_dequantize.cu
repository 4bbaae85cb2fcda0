// w[N, K] = (code · scale + zero) · scale of all, in float32, rounded once.
//
// Bound by memory: the blocks of a row in, 2 K or 4 K bytes out. A lane has eight neighbours of a row, and a warp 256, so that
// what it stores are whole lines; where they lie in their block is the same in every row, and is found once for kRows of them.
#include "cuda/kernels/packed_dequantize.h"

#include <limits>

#include "cuda/kernels/packed.cuh"

namespace aoext::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 4, kRows = 4, kOwn = 8, kWarpK = 32 * kOwn;  // blocks of a multiprocessor at least

using packed::Place;

// Where the integers from i on of a plane lie.
template <Bits kBits>
__device__ __forceinline__ Place place_of(int i) {
  return {kBits.byte_of(i), kBits.shift_of(i)};
}

// Eight integers of a plane, a byte each, kUp bits further up; of planes without runs the second four if there are so many.
template <Bits kBits, int kAlign, int kUp, int kUnitBytes>
__device__ __forceinline__ uint2 bits_of_eight(const uint8_t* unit, Place at, bool has_eight) {
  const uint8_t* const from = unit + at.byte;
  constexpr uint32_t kMask = ((1u << kBits.bits) - 1) * 0x01010101u;
  if constexpr (kBits.are_digits) {
    const bool is_last = at.byte == kBits.byte_of(Digits::kSecondEnd);
    const uint32_t first = packed::read_word<2>(from), second = is_last ? first : packed::read_word<2>(from + 4);
    return {packed::digits_of(first, at.shift) << kUp, packed::digits_of(second, at.shift + (is_last ? 1 : 0)) << kUp};
  } else if constexpr (kBits.run % kOwn == 0 || kBits.bits == 8) {
    constexpr int kWord = kBits.at % 4 == 0 ? kAlign : 2;
    uint2 both;
    if constexpr (kBits.at % 8 == 0 && kUnitBytes % 8 == 0)
      both = *reinterpret_cast<const uint2*>(from);
    else
      both = {packed::read_word<kWord>(from), packed::read_word<kWord>(from + 4)};
    return {(both.x >> at.shift & kMask) << kUp, (both.y >> at.shift & kMask) << kUp};
  } else if constexpr (kBits.bits == 2) {
    return {packed::spread<2, kUp>(from[0]), has_eight ? packed::spread<2, kUp>(from[1]) : 0};
  } else {
    static_assert(kBits.run == 1 && kBits.bits == 1);
    return {packed::spread<1, kUp>(from[0] & 15u), packed::spread<1, kUp>(from[0] >> 4)};
  }
}

// A number of a lane's group.
template <GroupNumber kNumber>
struct LaneNumber {
  Place planes[3];

  __device__ __forceinline__ explicit LaneNumber(int group)
      : planes{place_of<kNumber.factor.planes[0]>(group), place_of<kNumber.factor.planes[1]>(group),
               place_of<kNumber.factor.planes[2]>(group)} {}

  __device__ __forceinline__ float read(const uint8_t* unit) const {
    if constexpr (kNumber.at < 0) return 0;
    float v = packed::read_half(unit + kNumber.at);
    if constexpr (kNumber.has_factor()) {
      constexpr Integer kFactor = kNumber.factor;
      int stored = 0, up = 0;
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        if (kFactor.planes[i].bits == 0) break;
        stored |= (unit[planes[i].byte] >> planes[i].shift & ((1 << kFactor.planes[i].bits) - 1)) << up;
        up += kFactor.planes[i].bits;
      }
      // 2^23 and the integer, exactly.
      v *= __uint_as_float(0x4b000000u | (kFactor.is_signed ? stored ^ kFactor.middle : stored)) - (8388608.0f + kFactor.middle);
    }
    return kNumber.is_taken_off ? -v : v;
  }
};

// What a lane has of every row: eight k of a unit.
template <Code kCode>
struct Lane {
  using U = packed::Unit<kCode>;
  static constexpr Integer kCodes = layout_of(kCode).code;
  static constexpr GroupNumber kScale = layout_of(kCode).scale, kZero = layout_of(kCode).zero_point;
  Place planes[3];
  LaneNumber<kScale> scale;
  LaneNumber<kZero> zero;
  bool has_eight;

  __device__ __forceinline__ Lane(int in_unit, bool has_eight)
      : planes{place_of<kCodes.planes[0]>(in_unit), place_of<kCodes.planes[1]>(in_unit), place_of<kCodes.planes[2]>(in_unit)},
        scale(in_unit / U::kGroup),
        zero(in_unit / U::kGroup),
        has_eight(has_eight) {}

  template <int kPlane, int kUp>
  __device__ __forceinline__ void add_plane(const uint8_t* unit, uint2& v) const {
    if constexpr (kCodes.planes[kPlane].bits > 0) {
      const uint2 own = bits_of_eight<kCodes.planes[kPlane], U::kAlign, kUp, U::kBytes>(unit, planes[kPlane], has_eight);
      v.x |= own.x, v.y |= own.y;
    }
  }

  // Codes as bytes, as Number wants them.
  __device__ __forceinline__ uint2 codes(const uint8_t* unit) const {
    constexpr int kLow = kCodes.planes[0].bits, kLow2 = kLow + kCodes.planes[1].bits;
    uint2 eight{};
    add_plane<0, 0>(unit, eight), add_plane<1, kLow>(unit, eight), add_plane<2, kLow2>(unit, eight);
    if constexpr (U::kLayout.looks_up) eight = {packed::look_up(eight.x), packed::look_up(eight.y)};
    if constexpr (packed::Number<kCode>::kSigned) eight.x ^= 0x80808080u, eight.y ^= 0x80808080u;
    return eight;
  }
};

template <class Y>
__device__ __forceinline__ void store(Y* y, const float (&v)[kOwn], bool is_aligned, bool has_eight) {
  if constexpr (sizeof(Y) == 4) {
    reinterpret_cast<float4*>(y)[0] = {v[0], v[1], v[2], v[3]};
    if (has_eight) reinterpret_cast<float4*>(y)[1] = {v[4], v[5], v[6], v[7]};
  } else {
    const uint4 w{rounded_pair<Y>(v[0], v[1]), rounded_pair<Y>(v[2], v[3]), rounded_pair<Y>(v[4], v[5]),
                  rounded_pair<Y>(v[6], v[7])};
    if (is_aligned) {
      *reinterpret_cast<uint4*>(y) = w;
    } else {
      reinterpret_cast<uint2*>(y)[0] = {w.x, w.y};
      if (has_eight) reinterpret_cast<uint2*>(y)[1] = {w.z, w.w};
    }
  }
}

// Numbers of kRows rows from i on, of those that there are.
__device__ __forceinline__ void load_rows(const PackedLinear& p, const void* from, int64_t i, int64_t left, float (&v)[kRows]) {
  static_assert(kRows == 4);
  if (p.N % kRows == 0 && p.scale_type != Element::fp32 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(from) + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto own = static_cast<uint16_t>((r < 2 ? four.x : four.y) >> r % 2 * 16);
      v[r] = p.scale_type == Element::fp16 ? to_float(bits<__half>(own)) : to_float(bits<__nv_bfloat16>(own));
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) v[r] = r < left ? load_float(from, i + r, p.scale_type) : 0;
}

// Each of eight by its own group's numbers.
__device__ __forceinline__ void scale_each(const PackedLinear& p, int64_t k, int64_t n, float (&v)[kOwn]) {
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const auto at = static_cast<uint32_t>(min(k + j, p.K - 1));
    const int64_t i = at / static_cast<uint32_t>(p.group_size) * p.N + n;
    v[j] = fmaf(v[j], load_float(p.scale, i, p.scale_type), load_float(p.zero, i, p.scale_type));
  }
}

// A warp takes 256 k of kRows rows. Only codes without blocks have rows of less than whole eights.
template <class Y, Code kCode>
__global__ void __launch_bounds__(kThreads, kBlocks) packed_dequantize(const __grid_constant__ PackedLinear p, uint32_t chunks) {
  using U = packed::Unit<kCode>;
  const uint32_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, rows = warp / chunks;
  const int64_t first = int64_t{rows} * kRows, k = int64_t{warp - rows * chunks} * kWarpK + threadIdx.x % 32 * kOwn;
  if (k >= p.K || first >= p.N) return;
  const bool whole = U::kLayout.values % kOwn == 0 || p.K % kOwn == 0, has_eight = whole || k + kOwn <= p.K;
  const Lane<kCode> own(static_cast<int>(k % U::kValues), has_eight);
  const uint8_t* unit = p.weight + first * p.row_bytes + k / U::kValues * U::kBytes;
  Y* y = static_cast<Y*>(p.y) + first * p.K + k;
  const int64_t group = U::kBeside ? static_cast<uint32_t>(k) / static_cast<uint32_t>(p.group_size) * p.N : 0;
  const float of_all = U::kBeside ? 1.0f : *static_cast<const float*>(p.scale);
  constexpr float kBase = packed::Number<kCode>::kBase;
  float scales[kRows], zeros[kRows];
  const bool by_eight = U::kBeside && p.group_size % kOwn == 0;
  if (by_eight) {
    load_rows(p, p.scale, group + first, p.N - first, scales);
    load_rows(p, p.zero, group + first, p.N - first, zeros);
  }
  // All rows are on their way before the first is stored.
  const int count = static_cast<int>(min(p.N - first, int64_t{kRows}));
  uint2 codes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* const row = unit + min(r, count - 1) * p.row_bytes;
    codes[r] = own.codes(row);
    if constexpr (!U::kBeside) scales[r] = own.scale.read(row) * of_all, zeros[r] = own.zero.read(row) * of_all;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r, y += p.K) {
    if (r >= count) break;
    float v[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) v[j] = packed::Number<kCode>::of(j < 4 ? codes[r].x : codes[r].y, j % 4) - kBase;
    if (!U::kBeside || by_eight) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) v[j] = fmaf(v[j], scales[r], zeros[r]);
    } else {
      scale_each(p, k, first + r, v);
    }
    store(y, v, whole, has_eight);
  }
}

template <class Y, Code kCode>
cudaError_t launch_typed(const PackedLinear& p, cudaStream_t stream) {
  const int64_t chunks = ceil_div(p.K, kWarpK), blocks = ceil_div(chunks * ceil_div(p.N, kRows), kThreads / 32);
  if (blocks * (kThreads / 32) > std::numeric_limits<uint32_t>::max()) return cudaErrorInvalidConfiguration;
  packed_dequantize<Y, kCode><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p, static_cast<uint32_t>(chunks));
  return cudaGetLastError();
}

template <Code kCode>
cudaError_t launch_code(const PackedLinear& p, cudaStream_t stream) {
  switch (p.output) {
    case Element::bf16: return launch_typed<__nv_bfloat16, kCode>(p, stream);
    case Element::fp16: return launch_typed<__half, kCode>(p, stream);
    default: return launch_typed<float, kCode>(p, stream);
  }
}

}  // namespace

cudaError_t launch_packed_dequantize(const PackedLinear& p, cudaStream_t stream) {
  return with_packed_code(p.code, [&]<Code kCode> { return launch_code<kCode>(p, stream); });
}

}  // namespace aoext::cuda
