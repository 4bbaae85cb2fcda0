// 8-bit numbers as weights of weight_only_wgmma.cuh: they become x's type exactly, and y = sum · scale + bias, with a scale for
// each output channel.
#pragma once

#include "cuda/kernels/eight_bit.cuh"
#include "cuda/kernels/rowwise.cuh"
#include "cuda/kernels/sm90a/weight_only_wgmma.cuh"

namespace aoext::cuda::wgmma {

// kOfExpert: of a grouped product.
template <class T, Element kType, class Shape, bool kOfExpert>
struct EightBitWeights {
  static constexpr int kBlockN = Shape::kBlockN, kLinesBytes = kBlockN * kLine;
  static constexpr int kStage = kLine;  // of K
  static constexpr int kExtraBytes = 0;
  static constexpr int kNarrowStages = 8, kWideStages = 4;
  static constexpr int kMostCluster = 3;

  struct Maps {
    CUtensorMap lines;
    __device__ void prefetch() const { prefetch_map(&lines); }
  };

  class Copies {
   public:
    __device__ Copies(const EightBitWeights&, const Maps& maps) : maps_(maps) {}

    __device__ uint32_t bytes() const { return kLinesBytes; }
    __device__ void start(int n, int k_tile, int expert = 0) {
      matrix_.start(expert);
      n_ = n, k_ = k_tile * kStage;
    }

    __device__ void prefetch() {
      prefetch_tile(&maps_.lines, k_, n_);
      k_ += kStage;
    }

    __device__ void copy(uint32_t lines, uint32_t, uint32_t arrived) {
      matrix_.copy(lines, &maps_.lines, arrived, k_, n_);
      k_ += kStage;
    }

   private:
    const Maps& maps_;
    MatrixCopies<kOfExpert> matrix_;
    int n_, k_;
  };

  // Lane t of four holds k = 2t, 2t + 1 and 2t + 8, 2t + 9 of a fragment, two bytes each of its 16. The four read eight
  // neighbours. A chunk has 32 bytes.
  template <int kWarpgroupSplits>
  class Reader {
   public:
    __device__ Reader(const EightBitWeights&, uint32_t lines, uint32_t, const Thread& me)
        : row_(kept(row_address(lines, me, 32) + 2 * me.quad)) {}

    // Rows g and g + 8 of the warp's 16.
    template <class Ring>
    __device__ void load(const Ring& ring, int c) {
      const uint32_t at = (row_ + ring.round() * kLinesBytes) ^ (own_chunk<kWarpgroupSplits>(c) << 5);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t from = (at ^ (i / 2 << 4)) + i % 2 * 8 + ring.step() * kLinesBytes;
        upper_[i] = load_shared_half(from);
        lower_[i] = load_shared_half(from + 8 * kLine);
      }
    }

    __device__ void unpack(uint32_t (&f)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f[i / 2][i % 2 * 2] = fragment(upper_[i]);
        f[i / 2][i % 2 * 2 + 1] = fragment(lower_[i]);
      }
    }

   private:
    // e5m2 becomes fp16 by a byte permutation, which ptxas moves behind the fence of the wgmma that reads it, and then serialises
    // all wgmma (warning C7520). It does not move a multiplication by one.
    __device__ static uint32_t fragment(uint32_t pair) {
      const uint32_t widened = widened_pair<T, kType>(pair, 0);
      if constexpr (std::is_same_v<T, __half> && kType == Element::e5m2)
        return bits<uint32_t>(__hmul2(bits<__half2>(widened), __float2half2_rn(1)));
      else
        return widened;
    }

    uint32_t row_;
    uint32_t upper_[4], lower_[4];
  };
};

// The epilogue: the scale of the output channel, and the bias.
template <class T>
struct ScaledRows {
  using Sum = float;
  using Output = T;
  static constexpr bool kWholeVectors = false;
  struct Nothing {};

  T* y;
  int M, N;
  RowwiseLinear problem;

  // What ends with the rows of an expert. Behind the last one sums are zero, and so is what becomes of them.
  __device__ ScaledRows of_expert(bool is_expert, int expert, int end) const {
    ScaledRows own = *this;
    own.M = end;
    own.problem = aoext::cuda::of_expert(problem, expert);
    if (!is_expert) own.problem.scale = own.problem.bias = nullptr;
    return own;
  }

  __device__ Channel channel(int n) const { return n < N ? load_channel(problem, n) : Channel{}; }
  template <int, bool>
  struct Rows {
    __device__ void load(const ScaledRows&, int, int) {}
    __device__ Nothing operator()(int, int) const { return {}; }
  };
  __device__ float operator()(float sum, Nothing, const Channel& c) const { return scaled(sum, 1.0f, c); }
};

}  // namespace aoext::cuda::wgmma
