// Weight-only int4 for few rows: y[M, N] = x[M, K] · w[N, K]ᵀ + bias[N], w = q · scale + zero_point by groups of K.
//
// Memory. A sub-group computes 16 (32) columns, one (two) a lane. A lane reads its own row of w, 16 bytes a k-step and
// a 64-byte line in four k-steps; each weight is read once for all rows of the work-group's tile. x is read in its plain
// layout: for each row and k-step, the lanes load 64 contiguous bytes. The sub-groups of a work-group split K (split_k.h).
//
// Operands. A dword of w holds k = 8 d + 0 … 7 as nibbles. Nibbles j and j + 4 are 16 bits apart, so one shift, one mask
// and one exclusive or turn them into a dword of the matrix operation: two 16-bit floats 24 + q. The order of k within an
// operation is free as long as x has the same: with dwords d = 0 … 3 of j, then of j + 1, operation j / 2 multiplies x at
// k = 4 (l mod 8) + j + l / 8 from lane l, which lane l selects from four neighbours that it loads.
//
// Scales. q · scale + zero = (24 + q) · scale + (zero − 24 · scale). For each group, the products of 24 + q and the sums of
// x (products by ones, on the matrix engine too) are scaled and added in float32. The offset is 24, and not the 136 that
// an unshifted mantissa would give, so that little cancels. The result is exact but for float32 sums and y's one rounding.
//
// benchmarks/xpu.md has what was tried and not kept, and the times that these instructions predict.
// AOEXT_TYPE names the type of x and y, bf16, fp16 or (without AOEXT_DPAS) fp32; AOEXT_ELEMENT is it.
#include "int4_input.h"
#include "split_k.h"

namespace aoext::xpu {
namespace {

// k / group_size without a division in the loop, which would take forty instructions. Both are multiples of kStep, and
// below kMaxTileDepth a product by the rounded-up reciprocal is exact.
class GroupOf {
 public:
  explicit GroupOf(int group_size) : reciprocal_(~0u / static_cast<unsigned>(group_size / kStep) + 1) {}

  int operator()(int k) const {
    const unsigned step = static_cast<unsigned>(k) / kStep;
    return static_cast<int>(reciprocal_ == 0 ? step : sycl::mul_hi(step, reciprocal_));  // 0: a group is one k-step
  }

 private:
  unsigned reciprocal_;
};

template <int kShift>
inline uint32_t shifted(uint32_t w) {
  if constexpr (kShift >= 0) {
    return w << kShift;
  } else {
    return w >> -kShift;
  }
}

// The offset of q in an operand. A float32 product has none, because its rounding leaves no room for the cancellation.
template <Element kType>
constexpr float kOffset = kType == kFp32 ? 0.0f : 24.0f;

// Nibbles J and J + 4 of a dword as two 16-bit floats kOffset + q. For 24 + q, the nibble becomes the
// top of the mantissa of a number in [16, 32), and the exclusive or turns its sign bit into the offset.
template <Element kType, int J>
inline int biased_pair(uint32_t w) {
  if constexpr (kType == kFp16) {
    return (shifted<6 - 4 * J>(w) & 0x03C003C0u) ^ 0x4E004E00u;
  } else if constexpr (kType == kBf16) {
    return (shifted<3 - 4 * J>(w) & 0x00780078u) ^ 0x41C041C0u;
  } else {
    const uint32_t biased = biased_pair<kBf16, J>(w);
    const auto q = [](float value) { return sycl::bit_cast<uint32_t>(value - kOffset<kBf16>); };
    return (q(low_half<kBf16>(biased)) >> 16) | q(high_half<kBf16>(biased));
  }
}

// The weight operands of the two operations of a k-step, from a lane's 16 bytes.
template <Element kType>
inline void unpack(const Vector<uint32_t, 4>& packed, Dwords (&b)[2]) {
#pragma unroll
  for (int d = 0; d < 4; ++d) {
    b[0][d] = biased_pair<kType, 0>(packed[d]);
    b[0][d + 4] = biased_pair<kType, 1>(packed[d]);
    b[1][d] = biased_pair<kType, 2>(packed[d]);
    b[1][d + 4] = biased_pair<kType, 3>(packed[d]);
  }
}

template <Element kType, int R, int B, int C, int kTileK>
inline void int4_tile(void* y, const void* x, const void* weight, const void* scale, const void* zero_point, const void* bias,
                      int64_t M, int64_t N, int K, int group_size, int output_type, int scale_type, int bias_type) {
  using T = Tile<kType, R>;
  constexpr int kSteps = kTileK / kStep;
  constexpr int kBytes = kType == kFp32 ? 4 : 2;
  const T tile(this_sub_group().get_local_linear_id(), K);
  const GroupOf group_of(group_size);
  const auto accumulate = [&](auto& acc, const auto& out, int k) {
    const int64_t group = int64_t{group_of(k)} * N;
    Dwords b[C][kSteps][2];
    float s[C], z[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const char* const w = static_cast<const char*>(weight) + (out.columns[c] * K + k) / 2;
#pragma unroll
      for (int t = 0; t < kSteps; ++t) unpack<kType>(reinterpret_cast<const Vector<uint32_t, 4>*>(w)[t], b[c][t]);
      s[c] = load_float(scale, group + out.columns[c], scale_type);
      z[c] = load_float(zero_point, group + out.columns[c], scale_type) - kOffset<kType> * s[c];
    }
    const char* const own = static_cast<const char*>(x) + (out.first_row * K + k + out.lane % 8 * 4) * kBytes;
    const uint16_t* const arranged = static_cast<const uint16_t*>(x) + out.first_row * K + k * R;
#pragma unroll
    for (int i = 0; i < B; ++i) {
      typename T::Acc sums(0), products[C];
#pragma unroll
      for (int c = 0; c < C; ++c) products[c] = typename T::Acc(0);
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        typename T::A a[2];
        if constexpr (R * B >= kArrangedRows) {
          load_arranged<R>(arranged + (i * K + t * kStep) * R, out.lane, a);
        } else {
          load_input<kType, R>(own + t * kStep * kBytes, out.rows[i], K * kBytes, out.lane, a);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          tile.add_row_sums(sums, a[j]);
#pragma unroll
          for (int c = 0; c < C; ++c) tile.multiply(products[c], a[j], b[c][t][j]);
        }
      }
      sums = tile.row_sums(sums);
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const float zeros = sycl::fma(get<R>(sums, r), z[c], get<R>(acc[i][c], r));
          set<R>(acc[i][c], r, sycl::fma(get<R>(products[c], r), s[c], zeros));
        }
      }
    }
  };
  split_k<T, R, B, C, kTileK>(M, N, K, accumulate, [&](int64_t m, int64_t n, float value) {
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of a work-group's tile, B matrix operations of R each; its columns, C times 16; the group sizes
// that it serves, multiples of 128 or 32; the k-tile that it unpacks at a time, as long as the registers allow.
#define INT4_TILE(kernel, rows, R, B, C, group, tile_k) INT4_TILE_OF(AOEXT_TYPE, kernel, rows, R, B, C, group, tile_k)
#define INT4_TILE_OF(...) INT4_TILE_NAMED(__VA_ARGS__)
#define INT4_TILE_NAMED(type, kernel, rows, R, B, C, group, tile_k)                                                    \
  kernel(int4_tile_##type##_m##rows##_g##group)(void* y, const void* x, const void* weight, const void* scale,         \
                                                const void* zero_point, const void* bias, int64_t M, int64_t N, int K, \
                                                int group_size, int output_type, int scale_type, int bias_type) {      \
    aoext::xpu::int4_tile<aoext::xpu::AOEXT_ELEMENT, R, B, C, tile_k>(y, x, weight, scale, zero_point, bias, M, N, K,  \
                                                                      group_size, output_type, scale_type, bias_type); \
  }

#ifdef AOEXT_MATRIX
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 128, 128)
INT4_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 128, 64)
INT4_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 128, 64)
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL, 4, 4, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL, 8, 8, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 16, 8, 2, 2, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 32, 8, 4, 2, 32, 32)
#else  // without a matrix engine operands are floats, and a register of Xe-HPG holds half a sub-group of them
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 128, (aoext::xpu::AOEXT_ELEMENT == aoext::xpu::kFp32 ? 32 : 64))
INT4_TILE(AOEXT_KERNEL_256, 4, 4, 1, 1, 128, 32)
INT4_TILE(AOEXT_KERNEL_256, 8, 8, 1, 1, 128, 32)
INT4_TILE(AOEXT_KERNEL, 1, 1, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 4, 4, 1, 1, 32, 32)
INT4_TILE(AOEXT_KERNEL_256, 8, 8, 1, 1, 32, 32)
#endif
