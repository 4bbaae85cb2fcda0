// int4 in groups as weights of weight_only_wgmma.cuh: w = q · scale + zero_point, then y = sum · row_scale + bias.
//
// What was tried and not kept: benchmarks/cuda.md.
#pragma once

#include "cuda/kernels/int4.h"
#include "cuda/kernels/sm90a/weight_only_wgmma.cuh"

namespace aoext::cuda::wgmma {

constexpr int kInt4Stage = 256;  // k of a stage of w, whatever the scales are

// The group size that the kernel counts with: one group, which may have any, is as long as all stages are.
inline int64_t counted_group_size(const Int4Linear& p) {
  return p.group_size == p.K ? ceil_div(p.K, kInt4Stage) * kInt4Stage : p.group_size;
}

// The chunks of a stage that share scales: one for groups of 32, two for those of 64, four for longer ones.
inline int scale_chunks(const Int4Linear& p) {
  const int64_t group_size = counted_group_size(p);
  return group_size < 64 ? 1 : group_size < 128 ? 2 : 4;
}

template <class T>
struct Format;

template <>
struct Format<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr uint32_t kMagic = 0x43084308;  // 128: with a nibble in its low bits it is 128 + 8 + q
  static constexpr float kOffset = 136;
  __device__ static Pair both(float v) { return __float2bfloat162_rn(v); }
  __device__ static float2 floats(Pair v) { return __bfloat1622float2(v); }
};

template <>
struct Format<__half> {
  using Pair = __half2;
  static constexpr uint32_t kMagic = 0x64086408;  // 1024 + 8 + q
  static constexpr float kOffset = 1032;
  __device__ static Pair both(float v) { return __float2half2_rn(v); }
  __device__ static float2 floats(Pair v) { return __half22float2(v); }
};

// Scale and zero of a row: pairs of x's type, or float32.
template <class T, class S>
struct Affine {
  typename Format<T>::Pair scale, zero;

  __device__ static typename Format<T>::Pair load(uint32_t address) {
    uint32_t both;
    asm volatile("{\n.reg .b16 v;\nld.shared.b16 v, [%1];\nmov.b32 %0, {v, v};\n}" : "=r"(both) : "r"(address) : "memory");
    return bits<typename Format<T>::Pair>(both);
  }

  __device__ uint32_t operator()(uint32_t biased) const {
    using F = Format<T>;
    const auto q = __hsub2(bits<typename F::Pair>(biased), F::both(F::kOffset));  // exact
    return bits<uint32_t>(__hfma2(q, scale, zero));
  }
};

template <class T>
struct Affine<T, float> {
  float scale, zero;

  __device__ static float load(uint32_t address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
  }

  __device__ uint32_t operator()(uint32_t biased) const {
    using F = Format<T>;
    const float2 q = F::floats(bits<typename F::Pair>(biased));
    return rounded_pair<T>(fmaf(q.x - F::kOffset, scale, zero), fmaf(q.y - F::kOffset, scale, zero));
  }
};

// A byte of two nibbles as a pair of x's type. The multiplication moves the odd k to bit 16, on another pipe than logic
// operations, which run at half the rate of everything else here; a byte needs one of those.
template <class T, class A>
__device__ inline uint32_t dequantise(uint32_t byte, const A& affine) {
  return affine(and_xor<0x000F000F, Format<T>::kMagic>(byte * 0x1001));
}

// S: type of scales and zeros, x's or float32. kScaleChunks: chunks of 32 k for which they are loaded once; a group has no fewer.
// kOfExpert: of a grouped product.
template <class T, class S, int kScaleChunks, class Shape, bool kOfExpert>
struct Int4Weights {
  static constexpr int kBlockN = Shape::kBlockN, kLinesBytes = kBlockN * kLine;
  static constexpr int kStage = kInt4Stage;
  static constexpr int kMostGroups = 8;                                  // in a stage: groups of 32
  static constexpr int kZeros = kMostGroups * kBlockN * int(sizeof(S));  // where they begin, after the scales
  static constexpr int kExtraBytes = 2 * kZeros;
  static constexpr int kNarrowStages = 4;
  // Two, for loops over two stages, where x has room for two as well and scales leave registers for it.
  static constexpr int kWideStages = Shape::kBlockM <= 128 && (kScaleChunks > 1 || sizeof(S) == 2) ? 2 : 3;
  static constexpr int kMostCluster = 2;

  struct Maps {
    CUtensorMap lines, scale, zero;
    __device__ void prefetch() const { prefetch_map(&lines), prefetch_map(&scale), prefetch_map(&zero); }
  };

  int group_size;

  class Copies {
   public:
    __device__ Copies(const Int4Weights& w, const Maps& maps)
        : maps_(maps), groups_(max(kStage / w.group_size, 1)), k_tiles_(max((w.group_size + kStage - 1) / kStage, 1)) {}

    __device__ uint32_t bytes() const { return kLinesBytes + 2 * groups_ * kBlockN * sizeof(S); }

    __device__ void start(int n, int k_tile, int expert = 0) {
      matrix_.start(expert);
      n_ = n, k_ = k_tile * kLine, scale_row_ = k_tile / k_tiles_ * groups_, in_group_ = k_tile % k_tiles_;
    }

    __device__ void prefetch() {
      prefetch_tile(&maps_.lines, k_, n_);
      prefetch_tile(&maps_.scale, n_, scale_row_);
      prefetch_tile(&maps_.zero, n_, scale_row_);
      advance();
    }

    __device__ void copy(uint32_t lines, uint32_t extra, uint32_t arrived) {
      matrix_.copy(lines, &maps_.lines, arrived, k_, n_);
      matrix_.copy(extra, &maps_.scale, arrived, n_, scale_row_);
      matrix_.copy(extra + kZeros, &maps_.zero, arrived, n_, scale_row_);
      advance();
    }

   private:
    __device__ void advance() {
      k_ += kLine;
      if (++in_group_ == k_tiles_) in_group_ = 0, scale_row_ += groups_;
    }

    const Maps& maps_;
    MatrixCopies<kOfExpert> matrix_;
    int groups_, k_tiles_;  // groups in a k-tile, k-tiles in a group: one of them is 1
    int n_, k_, scale_row_, in_group_;
  };

  // Lane t of four holds k = 2t, 2t + 1 and 2t + 8, 2t + 9 of a fragment: bytes t and t + 4 of its 8. The four read them from one
  // word of shared memory. A chunk has 16 bytes.
  template <int kWarpgroupSplits>
  class Reader {
   public:
    __device__ Reader(const Int4Weights& w, uint32_t lines, uint32_t extra, const Thread& me)
        : row_(kept(row_address(lines, me, 16) + me.quad)), scale_(extra + me.row() * int(sizeof(S))), split_(me.split) {
      group_shift_ = w.group_size < kStage ? 26 - __clz(w.group_size) : 3;
    }

    // Rows g and g + 8 of the warp's 16.
    template <class Ring>
    __device__ void load(const Ring& ring, int c) {
      const uint32_t at =
          ((row_ + ring.round() * kLinesBytes) ^ (own_chunk<kWarpgroupSplits>(c) << 4)) + ring.step() * kLinesBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        upper_[i] = load_shared_byte(at + 4 * i);
        lower_[i] = load_shared_byte(at + 4 * i + 8 * kLine);
      }
      if (own_chunk<kWarpgroupSplits>(c) % kScaleChunks == 0) {
        const uint32_t from = scale_ + ring.slot() * kExtraBytes +
                              ((own_chunk<kWarpgroupSplits>(c) + 2 * split_) >> group_shift_) * (kBlockN * int(sizeof(S)));
        constexpr uint32_t kRow8 = 8 * sizeof(S);
        upper_affine_.scale = Affine<T, S>::load(from), upper_affine_.zero = Affine<T, S>::load(from + kZeros);
        lower_affine_.scale = Affine<T, S>::load(from + kRow8), lower_affine_.zero = Affine<T, S>::load(from + kRow8 + kZeros);
      }
    }

    __device__ void unpack(uint32_t (&f)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f[i / 2][i % 2 * 2] = dequantise<T>(upper_[i], upper_affine_);
        f[i / 2][i % 2 * 2 + 1] = dequantise<T>(lower_[i], lower_affine_);
      }
    }

   private:
    uint32_t row_, scale_;
    int split_, group_shift_;  // chunks of 32 k to groups of a stage
    uint32_t upper_[4], lower_[4];
    Affine<T, S> upper_affine_, lower_affine_;
  };
};

// The epilogue: the scale of the row of x, and the bias.
template <class T>
struct Biased {
  using Sum = float;
  using Output = T;
  static constexpr bool kWholeVectors = true;

  T* y;
  const float* row_scale;  // or null
  const void* bias;
  Element bias_type;
  int M, N;

  // What ends with the rows of an expert. Behind the last one sums are zero, and so is what becomes of them.
  __device__ Biased of_expert(bool is_expert, int expert, int end) const {
    Biased own = *this;
    const int64_t bytes = bias_type == Element::fp32 ? 4 : 2;
    own.bias = is_expert && bias != nullptr ? static_cast<const char*>(bias) + expert * bytes * N : nullptr;
    if (!is_expert) own.row_scale = nullptr;
    own.M = end;
    return own;
  }

  __device__ float channel(int n) const { return bias == nullptr || n >= N ? 0 : load_float(bias, n, bias_type); }
  __device__ float row(int m) const { return row_scale == nullptr ? 1 : m < M ? row_scale[m] : 0; }

  // Lanes of a warp have a row of every 32 each: asked for one after the other between the stores of a tile, these scales took
  // longer than the stores.
  template <int kRows, bool kEarly>
  struct Rows {
    float scales[(kRows + 31) / 32];

    __device__ void load(const Biased& e, int first_m, int lane) {
#pragma unroll
      for (int i = 0; i < (kRows + 31) / 32; ++i) scales[i] = e.row(first_m + 32 * i + lane);
    }
    __device__ float operator()(int first, int in) const { return __shfl_sync(~0u, scales[first / 32], first % 32 + in); }
  };
  template <int kRows>
  struct Rows<kRows, /*kEarly=*/false> : LateRows<Biased> {
    __device__ void load(const Biased& e, int first_m_of_tile, int) { this->epilogue = &e, this->first_m = first_m_of_tile; }
  };
  __device__ float operator()(float sum, float row_scale, float bias) const { return fmaf(sum, row_scale, bias); }
};

}  // namespace aoext::cuda::wgmma
