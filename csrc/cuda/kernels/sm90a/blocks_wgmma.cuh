// Weights of 8 bits, or of 4 bits through a table of 16, with a scale a block, as weights of weight_only_wgmma.cuh: codes become
// x's type exactly (a table is rounded to it), are multiplied by their scale, rounded to x's type, and y = sum · factor + bias, a
// factor a row of w.
//
// Bulk tensor copies want scales as [K / granule, N] of x's type, and an earlier kernel lays them out so (arrange_scales.cuh).
#pragma once

#include "cuda/kernels/arrange_scales.cuh"
#include "cuda/kernels/sm90a/weight_only_wgmma.cuh"

namespace aoext::cuda::wgmma {

// kGranule: k of an arranged scale; of 8 bits 32 or a whole stage, of lut4 16 or 32. kOfExpert: of a grouped product.
template <class T, Element kType, int kGranule, class Shape, bool kOfExpert>
struct BlockWeights {
  static constexpr bool kTable = kType == Element::lut4;
  static constexpr int kBlockN = Shape::kBlockN, kLinesBytes = kBlockN * kLine;
  static constexpr int kStage = kTable ? 256 : 128;  // of K
  static constexpr int kGroups = kStage / kGranule;  // of a stage
  static constexpr int kRowOfScales = kBlockN * int(sizeof(T));
  static constexpr int kExtraBytes = kGroups * kRowOfScales;
  static constexpr int kNarrowStages = kTable ? 4 : 8, kWideStages = kTable ? (Shape::kBlockM <= 128 ? 2 : 3) : 4;
  static constexpr int kMostCluster = 2;
  static_assert(kExtraBytes % 128 == 0);

  struct Maps {
    CUtensorMap lines, scale;
    __device__ void prefetch() const { prefetch_map(&lines), prefetch_map(&scale); }
  };

  const Table16* table;

  class Copies {
   public:
    __device__ Copies(const BlockWeights&, const Maps& maps) : maps_(maps) {}

    __device__ uint32_t bytes() const { return kLinesBytes + kExtraBytes; }
    __device__ void start(int n, int k_tile, int expert = 0) {
      matrix_.start(expert);
      n_ = n, k_tile_ = k_tile;
    }

    __device__ void prefetch() {
      prefetch_tile(&maps_.lines, k_tile_ * kLine, n_);
      ++k_tile_;
    }

    __device__ void copy(uint32_t lines, uint32_t extra, uint32_t arrived) {
      matrix_.copy(lines, &maps_.lines, arrived, k_tile_ * kLine, n_);
      matrix_.copy(extra, &maps_.scale, arrived, n_, k_tile_ * kGroups);
      ++k_tile_;
    }

   private:
    const Maps& maps_;
    MatrixCopies<kOfExpert> matrix_;
    int n_, k_tile_;
  };

  // Lane t of four holds k = 2t, 2t + 1 and 2t + 8, 2t + 9 of a fragment. Codes of 8 bits are two bytes each of its 16, of
  // which the four read eight neighbours. Codes of 4 bits are a byte each, and a chunk's 32 k are 16 bytes, which all four read:
  // byte t of each word.
  template <int kWarpgroupSplits>
  class Reader {
   public:
    __device__ Reader(const BlockWeights& w, uint32_t lines, uint32_t extra, const Thread& me)
        : row_(kept(row_address(lines, me, kTable ? 16 : 32) + (kTable ? 0 : 2 * me.quad))),
          scale_(extra + me.row() * int(sizeof(T)) + 2 * me.split * (32 / kGranule) * kRowOfScales) {
      wait_for_last_kernel();  // arrange_scales
      if constexpr (kTable) {
        table_ = *w.table;
        pick_ = kept(me.quad | (4 + me.quad) << 4);
      }
    }

    // Rows g and g + 8 of the warp's 16.
    template <class Ring>
    __device__ void load(const Ring& ring, int c) {
      const uint32_t at = (row_ + ring.round() * kLinesBytes) ^ (own_chunk<kWarpgroupSplits>(c) << (kTable ? 4 : 5));
      if constexpr (kTable) {
        upper_words_ = load_shared_16(at + ring.step() * kLinesBytes);
        lower_words_ = load_shared_16(at + ring.step() * kLinesBytes + 8 * kLine);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t from = (at ^ (i / 2 << 4)) + i % 2 * 8 + ring.step() * kLinesBytes;
          upper_[i] = load_shared_half(from);
          lower_[i] = load_shared_half(from + 8 * kLine);
        }
      }
      if (kGranule <= 32 || c == 0) {
        const uint32_t from = scale_ + ring.slot() * kExtraBytes + own_chunk<kWarpgroupSplits>(c) * 32 / kGranule * kRowOfScales;
#pragma unroll
        for (int i = 0; i < kScales; ++i) {
          upper_scale_[i] = load_both(from + i * kRowOfScales);
          lower_scale_[i] = load_both(from + i * kRowOfScales + 8 * int(sizeof(T)));
        }
      }
    }

    __device__ void unpack(uint32_t (&f)[2][4]) const {
      uint32_t upper[4], lower[4];
      if constexpr (kTable) {
        table_.pairs(codes(upper_words_), upper);
        table_.pairs(codes(lower_words_), lower);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          upper[i] = widened_pair<T, kType>(upper_[i], 0);
          lower[i] = widened_pair<T, kType>(lower_[i], 0);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f[i / 2][i % 2 * 2] = product(upper[i], upper_scale_[i / 2 % kScales]);
        f[i / 2][i % 2 * 2 + 1] = product(lower[i], lower_scale_[i / 2 % kScales]);
      }
    }

   private:
    static constexpr int kScales = kGranule == 16 ? 2 : 1;  // of a row's chunk

    __device__ static uint32_t load_both(uint32_t address) {
      uint32_t both;
      asm volatile("{\n.reg .b16 v;\nld.shared.b16 v, [%1];\nmov.b32 %0, {v, v};\n}" : "=r"(both) : "r"(address) : "memory");
      return both;
    }

    __device__ static uint32_t product(uint32_t a, uint32_t b) {
      using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
      return bits<uint32_t>(__hmul2(bits<Pair>(a), bits<Pair>(b)));
    }

    // Byte t of each word.
    __device__ uint32_t codes(const uint4& v) const {
      return __byte_perm(__byte_perm(v.x, v.y, pick_), __byte_perm(v.z, v.w, pick_), 0x5410);
    }

    uint32_t row_, scale_, pick_;
    uint32_t upper_[4], lower_[4];
    uint4 upper_words_, lower_words_;
    uint32_t upper_scale_[kScales], lower_scale_[kScales];
    Table16 table_;
  };
};

// The epilogue: the factor of the output channel, and the bias.
template <class T>
struct FactoredRows {
  using Sum = float;
  using Output = T;
  static constexpr bool kWholeVectors = false;
  struct Nothing {};

  T* y;
  int M, N;
  const float* factor;
  const void* bias;
  Element bias_type;

  // What ends with the rows of an expert. Behind the last one sums are zero, and so is what becomes of them.
  __device__ FactoredRows of_expert(bool is_expert, int expert, int end) const {
    FactoredRows own = *this;
    own.M = end;
    own.factor = is_expert ? factor + int64_t{expert} * N : nullptr;
    own.bias = is_expert ? behind(bias, int64_t{expert} * N, bias_type) : nullptr;
    return own;
  }

  __device__ Channel channel(int n) const {
    return n < N && factor ? Channel{factor[n], bias ? load_float(bias, n, bias_type) : 0.0f} : Channel{};
  }
  template <int, bool>
  struct Rows {
    __device__ void load(const FactoredRows&, int, int) {}
    __device__ Nothing operator()(int, int) const { return {}; }
  };
  __device__ float operator()(float sum, Nothing, const Channel& c) const { return scaled(sum, 1.0f, c); }
};

}  // namespace aoext::cuda::wgmma
