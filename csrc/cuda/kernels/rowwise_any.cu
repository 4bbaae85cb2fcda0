// y = (sum x · w) · row_scale · scale + bias for what faster kernels do not take: any K, any alignment, x of any type. int8 by
// int8 goes four at a time into int32, everything else through float32 fma. The walks are those of product_any.cuh.
#include "cuda/kernels/rowwise_any.h"

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/product_any.cuh"
#include "cuda/kernels/rowwise.cuh"

namespace aoext::cuda {
namespace {

using product_any::kRowsThreads;
using product_any::kTileThreads;

constexpr int kFewTokens = 16;

template <Element kType>
using TypeOf =
    std::conditional_t<kType == Element::bf16, __nv_bfloat16, std::conditional_t<kType == Element::fp16, __half, float>>;

// Four neighbouring bytes of a row, of which `left` are in it; the others are 0.
__device__ __forceinline__ uint32_t load_bytes(const uint8_t* row, uint32_t k, uint32_t left, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint32_t*>(row + k);
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < left) word |= uint32_t{row[k + j]} << 8 * j;
  return word;
}

template <Element W>
__device__ __forceinline__ void unpack_floats(uint32_t word, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 pair = __half22float2(eight_bit::half_pair(eight_bit::half_pair_of<W>(word, i)));
    v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ void unpack_floats(uint32_t word, Element type, float (&v)[4]) {
  switch (type) {
    case Element::int8: return unpack_floats<Element::int8>(word, v);
    case Element::e4m3: return unpack_floats<Element::e4m3>(word, v);
    default: return unpack_floats<Element::e5m2>(word, v);
  }
}

struct Operands {
  const RowwiseLinear& p;
  int64_t M, N;
  bool x_aligned, w_aligned;  // whether runs of four start at multiples of their size, and end in their row

  __device__ __forceinline__ Operands(const RowwiseLinear& p, int x_size)
      : p(p),
        M(p.M),
        N(p.N),
        x_aligned(p.K % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % (4 * x_size) == 0),
        w_aligned(p.K % 4 == 0 && reinterpret_cast<uintptr_t>(p.weight) % 4 == 0) {}

  using Raw = uint32_t;
  static constexpr int kTokens = 4, kChannels = 8;

  __device__ __forceinline__ uint32_t x_bytes(int64_t m, uint32_t k) const {
    return load_bytes(static_cast<const uint8_t*>(p.x) + m * p.K, k, static_cast<uint32_t>(p.K) - k, x_aligned);
  }
  __device__ __forceinline__ uint32_t w_bytes(int64_t n, uint32_t k) const {
    return load_bytes(static_cast<const uint8_t*>(p.weight) + n * p.K, k, static_cast<uint32_t>(p.K) - k, w_aligned);
  }

  template <class Sum>
  __device__ __forceinline__ void store(int64_t m, int64_t n, Sum sum) const {
    store_output(p, m, n, sum, load_row_scale(p, m), load_channel(p, n));
  }
};

// A value is four int8.
struct Int8Operands : Operands {
  using Value = int;
  using Sum = int;
  static constexpr int kRun = 1;
  uint32_t length;

  __device__ __forceinline__ explicit Int8Operands(const RowwiseLinear& p)
      : Operands(p, 1), length(static_cast<uint32_t>((p.K + 3) / 4)) {}

  __device__ __forceinline__ int input(int64_t m, uint32_t i) const { return static_cast<int>(x_bytes(m, 4 * i)); }
  __device__ __forceinline__ void inputs(int64_t m, uint32_t i, int (&v)[1]) const { v[0] = input(m, i); }
  __device__ __forceinline__ uint32_t raw(int64_t n, uint32_t i) const { return w_bytes(n, 4 * i); }
  __device__ __forceinline__ void unpack(uint32_t raw, int64_t, uint32_t, int (&w)[1]) const { w[0] = static_cast<int>(raw); }
  static __device__ __forceinline__ int add(int sum, int x, int w) { return __dp4a(x, w, sum); }

  struct Channel {
    const Int8Operands& o;
    int64_t n;
    __device__ __forceinline__ void run(uint32_t i, int (&w)[1]) const { o.unpack(o.raw(n, i), n, i, w); }
  };
};

// X: of x; float8 as the weight is, or wider.
template <Element X>
struct FloatOperands : Operands {
  using Value = float;
  using Sum = float;
  static constexpr int kRun = 4;
  uint32_t length;

  __device__ __forceinline__ explicit FloatOperands(const RowwiseLinear& p)
      : Operands(p, sizeof(T)), length(static_cast<uint32_t>(p.K)) {}

  using T = std::conditional_t<X == Element::e4m3 || X == Element::e5m2, uint8_t, TypeOf<X>>;

  __device__ __forceinline__ float input(int64_t m, uint32_t k) const {
    const T x = static_cast<const T*>(p.x)[m * p.K + k];
    if constexpr (sizeof(T) > 1) {
      return to_float(x);
    } else {
      float v[4];
      unpack_floats<X>(x, v);
      return v[0];
    }
  }
  __device__ __forceinline__ void inputs(int64_t m, uint32_t k, float (&v)[4]) const {
    if constexpr (sizeof(T) > 1) {
      struct alignas(4 * sizeof(T)) Four {
        T x[4];
      };
      const T* const x = static_cast<const T*>(p.x) + m * p.K + k;
      if (x_aligned) {
        const Four four = *reinterpret_cast<const Four*>(x);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = to_float(four.x[j]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = k + j < length ? to_float(x[j]) : 0.0f;
      }
    } else {
      unpack_floats<X>(x_bytes(m, k), v);
    }
  }
  __device__ __forceinline__ uint32_t raw(int64_t n, uint32_t k) const { return w_bytes(n, k); }
  __device__ __forceinline__ void unpack(uint32_t raw, int64_t, uint32_t, float (&w)[4]) const {
    if constexpr (sizeof(T) > 1)
      unpack_floats(raw, p.weight_type, w);
    else
      unpack_floats<X>(raw, w);
  }
  static __device__ __forceinline__ float add(float sum, float x, float w) { return fmaf(x, w, sum); }

  struct Channel {
    const FloatOperands& o;
    int64_t n;
    __device__ __forceinline__ void run(uint32_t k, float (&w)[4]) const { o.unpack(o.raw(n, k), n, k, w); }
  };
};

template <class Operands>
__global__ void __launch_bounds__(kTileThreads) rowwise_any_tile(const __grid_constant__ RowwiseLinear p) {
  product_any::walk_tile(Operands(p));
}

template <class Operands>
__global__ void __launch_bounds__(kRowsThreads, 2) rowwise_any_rows(const __grid_constant__ RowwiseLinear p) {
  product_any::walk_rows(Operands(p));
}

template <class Operands>
cudaError_t launch(const RowwiseLinear& p, cudaStream_t stream) {
  if (p.M <= kFewTokens || p.N < 32)
    return product_any::launch(rowwise_any_rows<Operands>, product_any::rows_blocks<Operands>(p.M, p.N), kRowsThreads, p, stream);
  return product_any::launch(rowwise_any_tile<Operands>, product_any::tile_blocks(p.M, p.N), kTileThreads, p, stream);
}

}  // namespace

cudaError_t launch_rowwise_any(const RowwiseLinear& p, cudaStream_t stream) {
  switch (p.type) {
    case Element::int8: return launch<Int8Operands>(p, stream);
    case Element::e4m3: return launch<FloatOperands<Element::e4m3>>(p, stream);
    case Element::e5m2: return launch<FloatOperands<Element::e5m2>>(p, stream);
    case Element::bf16: return launch<FloatOperands<Element::bf16>>(p, stream);
    case Element::fp16: return launch<FloatOperands<Element::fp16>>(p, stream);
    default: return launch<FloatOperands<Element::fp32>>(p, stream);
  }
}

}  // namespace aoext::cuda
