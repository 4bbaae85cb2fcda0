// y = (sum x · w) · row_scale · scale + bias for what faster kernels do not take: any K, any alignment, x of any type. int8 by
// int8 goes four at a time into int32, everything else through float32 fma. The loops are those of product_any.cuh, over runs of
// four elements: words of w.
#include "cuda/kernels/rowwise_any.h"

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/experts_any.cuh"
#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/sizes.h"

namespace aoext::cuda {
namespace {

using product_any::kRowsThreads;
using product_any::kTileThreads;

constexpr int kFewRows = 48;  // of x, up to which reading w again costs less than tiles do

// Four neighbouring bytes of a row of K, from a multiple of four on; past its end they are 0. kAligned: rows start and end at
// multiples of four.
template <bool kAligned>
__device__ __forceinline__ uint32_t load_bytes(const void* rows, int64_t row, uint32_t k, int64_t K) {
  const uint8_t* const p = static_cast<const uint8_t*>(rows) + row * K + k;
  if constexpr (kAligned) return *reinterpret_cast<const uint32_t*>(p);
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) word |= (k + j < K ? uint32_t{p[j]} : 0) << 8 * j;
  return word;
}

template <Element W>
__device__ __forceinline__ void unpack(uint32_t word, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 pair = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<W>(word, i)));
    v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
  }
}

template <Element W, int kCount>
__device__ __forceinline__ void unpack(const uint32_t (&words)[kCount], float (&v)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) unpack<W>(words[i], v[i]);
}

template <int kCount>
__device__ __forceinline__ void unpack(Element type, const uint32_t (&words)[kCount], float (&v)[kCount][4]) {
  switch (type) {
    case Element::int8: return unpack<Element::int8>(words, v);
    case Element::e4m3: return unpack<Element::e4m3>(words, v);
    default: return unpack<Element::e5m2>(words, v);
  }
}

template <bool kAligned>
struct Problem {
  const RowwiseLinear& p;
  int64_t M, N;
  uint32_t length;
  static constexpr int kBlockM = kAligned ? 8 : 4, kBlockN = 8;  // as many as registers hold

  __device__ __forceinline__ Problem(const RowwiseLinear& p, int64_t length)
      : p(p), M(p.M), N(p.N), length(static_cast<uint32_t>(length)) {}

  template <class Sum>
  __device__ __forceinline__ void store(int64_t m, int64_t n, Sum sum) const {
    store_output(p, m, n, sum, load_row_scale(p, m), load_channel(p, n));
  }
};

// int8 by int8: a value is four of them.
template <bool kAligned>
struct Int8Operands : Problem<kAligned> {
  using Problem<kAligned>::p;
  using Problem<kAligned>::kBlockN;
  using Value = int;
  using Sum = int;
  using RawX = uint32_t;
  using RawW = uint32_t;
  static constexpr int kRun = 1;

  __device__ __forceinline__ explicit Int8Operands(const RowwiseLinear& p) : Problem<kAligned>(p, (p.K + 3) / 4) {}

  __device__ __forceinline__ uint32_t raw_x(int64_t m, uint32_t i) const { return load_bytes<kAligned>(p.x, m, 4 * i, p.K); }
  __device__ __forceinline__ int value(uint32_t raw) const { return static_cast<int>(raw); }
  __device__ __forceinline__ void xs(int64_t m, uint32_t i, int (&v)[1]) const { v[0] = value(raw_x(m, i)); }
  __device__ __forceinline__ uint32_t raw_w(int64_t n, uint32_t i) const { return load_bytes<kAligned>(p.weight, n, 4 * i, p.K); }
  __device__ __forceinline__ void ws(const uint32_t (&raw)[kBlockN], int64_t, uint32_t, int (&w)[kBlockN][1]) const {
#pragma unroll
    for (int c = 0; c < kBlockN; ++c) w[c][0] = value(raw[c]);
  }
  static __device__ __forceinline__ int add(int sum, int x, int w) { return __dp4a(x, w, sum); }

  struct Channel {
    const Int8Operands& o;
    int64_t n;
    __device__ __forceinline__ void ws(uint32_t raw, uint32_t, int (&w)[1]) const { w[0] = o.value(raw); }
  };
};

// X: of x, which is float8 as the weight is, or wider than that.
template <Element X, bool kAligned>
struct FloatOperands : Problem<kAligned> {
  using Problem<kAligned>::p;
  using Problem<kAligned>::length;
  using Value = float;
  using Sum = float;
  using RawX = std::conditional_t<
      X == Element::fp32, float,
      std::conditional_t<X == Element::bf16, __nv_bfloat16, std::conditional_t<X == Element::fp16, __half, uint8_t>>>;
  using RawW = uint32_t;
  static constexpr int kRun = 4;
  static constexpr bool kXIs8Bit = sizeof(RawX) == 1;

  __device__ __forceinline__ explicit FloatOperands(const RowwiseLinear& p) : Problem<kAligned>(p, p.K) {}

  __device__ __forceinline__ RawX raw_x(int64_t m, uint32_t k) const { return static_cast<const RawX*>(p.x)[m * p.K + k]; }
  __device__ __forceinline__ float value(RawX raw) const {
    if constexpr (kXIs8Bit) {
      float v[4];
      unpack<X>(raw, v);
      return v[0];
    } else {
      return to_float(raw);
    }
  }
  __device__ __forceinline__ void xs(int64_t m, uint32_t k, float (&v)[4]) const {
    if constexpr (kXIs8Bit) {
      unpack<X>(load_bytes<kAligned>(p.x, m, k, p.K), v);
    } else if constexpr (kAligned) {
      struct alignas(4 * sizeof(RawX)) Four {
        RawX x[4];
      };
      const Four four = *reinterpret_cast<const Four*>(static_cast<const RawX*>(p.x) + m * p.K + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = to_float(four.x[j]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = k + j < length ? to_float(raw_x(m, k + j)) : 0.0f;
    }
  }
  __device__ __forceinline__ uint32_t raw_w(int64_t n, uint32_t k) const { return load_bytes<kAligned>(p.weight, n, k, p.K); }
  template <int kCount>
  __device__ __forceinline__ void ws(const uint32_t (&raw)[kCount], int64_t, uint32_t, float (&w)[kCount][4]) const {
    if constexpr (kXIs8Bit)
      unpack<X>(raw, w);
    else
      unpack(p.weight_type, raw, w);
  }
  static __device__ __forceinline__ float add(float sum, float x, float w) { return fmaf(x, w, sum); }

  struct Channel {
    const FloatOperands& o;
    int64_t n;
    __device__ __forceinline__ void ws(uint32_t raw, uint32_t k, float (&w)[4]) const {
      const uint32_t one[1] = {raw};
      float run[1][4];
      o.ws(one, n, k, run);
#pragma unroll
      for (int r = 0; r < 4; ++r) w[r] = run[0][r];
    }
  };
};

template <class Operands>
__global__ void __launch_bounds__(kTileThreads, 2) rowwise_any_tile(const __grid_constant__ RowwiseLinear p) {
  product_any::compute_tile(Operands(p));
}

template <class Operands>
__global__ void __launch_bounds__(kRowsThreads, 2) rowwise_any_rows(const __grid_constant__ RowwiseLinear p) {
  product_any::compute_rows(Operands(p));
}

template <class Operands>
__global__ void __launch_bounds__(kTileThreads, 2) rowwise_any_tile_of_experts(const __grid_constant__ RowwiseLinear p) {
  product_any::compute_tile_of_experts<Operands>(p, p.output);
}

template <class Operands>
__global__ void __launch_bounds__(kRowsThreads) rowwise_any_rows_of_experts(const __grid_constant__ RowwiseLinear p) {
  product_any::compute_rows_of_experts<Operands>(p, p.output);
}

template <class Operands>
cudaError_t launch_typed(const RowwiseLinear& p, cudaStream_t stream) {
  if (p.experts > 0)
    return product_any::launch<Operands>(rowwise_any_tile_of_experts<Operands>, rowwise_any_rows_of_experts<Operands>,
                                         product_any::few_rows_of_experts<Operands>(p.experts), p, stream);
  return product_any::launch<Operands>(rowwise_any_tile<Operands>, rowwise_any_rows<Operands>, kFewRows, p, stream);
}

template <bool kAligned>
cudaError_t launch_aligned(const RowwiseLinear& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::int8: return launch_typed<Int8Operands<kAligned>>(p, stream);
    case Element::e4m3: return launch_typed<FloatOperands<Element::e4m3, kAligned>>(p, stream);
    case Element::e5m2: return launch_typed<FloatOperands<Element::e5m2, kAligned>>(p, stream);
    case Element::bf16: return launch_typed<FloatOperands<Element::bf16, kAligned>>(p, stream);
    case Element::fp16: return launch_typed<FloatOperands<Element::fp16, kAligned>>(p, stream);
    default: return launch_typed<FloatOperands<Element::fp32, kAligned>>(p, stream);
  }
}

}  // namespace

cudaError_t KernelOf<RowwiseAny>::launch(const RowwiseLinear& p, const RowwiseAny&, void* /*workspace*/, cudaStream_t stream) {
  const bool aligned = p.K % 4 == 0 && is_aligned(p.x) && is_aligned(p.weight, 4);
  return aligned ? launch_aligned<true>(p, stream) : launch_aligned<false>(p, stream);
}

}  // namespace aoext::cuda
