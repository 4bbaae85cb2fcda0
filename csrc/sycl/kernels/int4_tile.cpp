#include "split_k.h"

namespace aoext::xpu {
namespace {

template <int kShift>
inline uint32_t shifted(uint32_t w) {
  if constexpr (kShift >= 0) {
    return w << kShift;
  } else {
    return w >> -kShift;
  }
}

// Nibbles J and J + 4 of a dword as two 16-bit floats 24 + q: the nibble moves to the top of the mantissa of a
// number from 16 on, and an exclusive or turns its sign bit into an offset.
template <Element kType, int J>
inline int biased_pair(uint32_t w) {
  if constexpr (kType == kFp16) {
    return (shifted<6 - 4 * J>(w) & 0x03C003C0u) ^ 0x4E004E00u;
  } else {
    return (shifted<3 - 4 * J>(w) & 0x00780078u) ^ 0x41C041C0u;
  }
}

template <Element kType, int R, int B, int C, int kPiece>
inline void int4_tile(void* y, const void* x, const void* weight, const void* scale, const void* zero_point, const void* bias,
                      int64_t M, int64_t N, int K, int group_size, int output_type, int scale_type, int bias_type) {
  using T = Tile<kType, R>;
  constexpr int kSteps = kPiece / kStep;
  constexpr int kBytes = kType == kFp32 ? 4 : 2;
  const T tile(this_sub_group().get_local_linear_id(), K);
  const auto accumulate = [&](auto& acc, const auto& part, int k) {
    Dwords b[C][kSteps][2];
    float s[C], z[C];
    const int64_t group = static_cast<unsigned>(k) / static_cast<unsigned>(group_size) * N;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const auto* const w = reinterpret_cast<const Vector<uint32_t, 4>*>(static_cast<const char*>(weight) + (part.columns[c] * K + k) / 2);
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        const auto q = w[t];
#pragma unroll
        for (int d = 0; d < 4; ++d) {
          b[c][t][0][d] = biased_pair<kType, 0>(q[d]);
          b[c][t][0][d + 4] = biased_pair<kType, 1>(q[d]);
          b[c][t][1][d] = biased_pair<kType, 2>(q[d]);
          b[c][t][1][d + 4] = biased_pair<kType, 3>(q[d]);
        }
      }
      s[c] = load_float(scale, group + part.columns[c], scale_type);
      z[c] = load_float(zero_point, group + part.columns[c], scale_type) - 24.0f * s[c];
    }
    const char* const own = static_cast<const char*>(x) + (part.first_row * K + k) * kBytes + part.lane % 8 * (4 * kBytes);
#pragma unroll
    for (int i = 0; i < B; ++i) {
      typename T::Acc sums(0), products[C];
#pragma unroll
      for (int c = 0; c < C; ++c) products[c] = typename T::Acc(0);
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        typename T::A a[2];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const char* const row = own + static_cast<unsigned>(part.rows[i][r] * K * kBytes);
          if constexpr (kType == kFp32) {
            const auto v = reinterpret_cast<const Vector<float, 4>*>(row)[t * 8];
            set<R>(a[0], r, part.lane < 8 ? v[0] : v[1]);
            set<R>(a[1], r, part.lane < 8 ? v[2] : v[3]);
          } else {
            const auto v = reinterpret_cast<const Vector<short, 4>*>(row)[t * 8];
            set<R>(a[0], r, part.lane < 8 ? v[0] : v[1]);
            set<R>(a[1], r, part.lane < 8 ? v[2] : v[3]);
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          tile.add_row_sums(sums, a[j]);
#pragma unroll
          for (int c = 0; c < C; ++c) tile.multiply(products[c], a[j], b[c][t][j]);
        }
      }
#pragma unroll
      for (int c = 0; c < C; ++c)
#pragma unroll
      for (int r = 0; r < R; ++r)
        set<R>(acc[i][c], r, sycl::fma(get<R>(products[c], r), s[c], sycl::fma(get<R>(sums, r), z[c], get<R>(acc[i][c], r))));
    }
  };
  split_k<T, R, B, C, kPiece>(M, N, K, accumulate, [&](int64_t m, int64_t n, float value) {
    if (bias != nullptr) value += load_float(bias, n, bias_type);
    store_float(y, m * N + n, output_type, value);
  });
}

}  // namespace
}  // namespace aoext::xpu

// One kernel: the rows of y that a work-group takes, as B blocks of R; its columns, as C tiles of 16; the group
// sizes that it serves are multiples of kPiece.
#define INT4_TILE(type, element, rows, R, B, C, piece)                                                                     \
  AOEXT_KERNEL(int4_tile_##type##_m##rows##_g##piece)                                                                      \
  (void* y, const void* x, const void* weight, const void* scale, const void* zero_point, const void* bias, int64_t M,     \
   int64_t N, int K, int group_size, int output_type, int scale_type, int bias_type) {                                     \
    aoext::xpu::int4_tile<aoext::xpu::element, R, B, C, piece>(y, x, weight, scale, zero_point, bias, M, N, K, group_size, \
                                                               output_type, scale_type, bias_type);                        \
  }
#define INT4_TILES(type, element)          \
  INT4_TILE(type, element, 1, 1, 1, 1, 128) \
  INT4_TILE(type, element, 4, 4, 1, 1, 128) \
  INT4_TILE(type, element, 8, 8, 1, 1, 128) \
  INT4_TILE(type, element, 1, 1, 1, 1, 32)  \
  INT4_TILE(type, element, 4, 4, 1, 1, 32)  \
  INT4_TILE(type, element, 8, 8, 1, 1, 32)

#ifdef SEL
#define INT4_(...) INT4_TILE(__VA_ARGS__)
INT4_(SEL)
#else
INT4_TILES(bf16, kBf16)
INT4_TILES(fp16, kFp16)
#ifndef AOEXT_DPAS
INT4_TILES(fp32, kFp32)
#endif
#endif
