// Weights to high precision, in float32, rounded once. A sub-group walks 32 rows along n, its lanes side by side along k.
//
//   w [N, K] = (((value − zero_point) · scale) · global_scale)     by blocks: values are codes of 8 bits, or those that codes of
//   4
//                                                                 bits look up in a table, of which each lane holds one
//   w [N, K] = (code · scale + zero_point) · global_scale          where codes lie as common/layout.h says; a lane has 32 of them
//                                                                 at a time (planes.h), or one
#include "kernel.h"
#include "piece.h"
#include "planes.h"
#include "scale.h"

namespace aoext::xpu {
namespace {

constexpr int kRows = 32;

// Scales and zero points of a row's groups, which lie in its blocks or beside them.
struct OwnScales {
  Code code;
  const Planes& planes;
  GroupScales beside;
  unsigned group_size;
  float whole;

  ScaleAndZero at(const char* row, int64_t n, int k) const {
    if (!planes.has_scales_inside()) return beside.at(static_cast<unsigned>(k) / group_size, n);
    return scale_inside<1>(code, planes.block(row, k), planes.place(k));
  }
};

inline float dequantized(float code, const ScaleAndZero& s, float whole) { return sycl::fma(code, s.scale, s.zero) * whole; }

}  // namespace
}  // namespace aoext::xpu

// table is null where codes have 8 bits; zero_point and global_scale may be null.
AOEXT_KERNEL(dequantize_blocks)
(void* out, const void* weight, const float* table, const void* scale, const int8_t* zero_point, const float* global_scale,
 int64_t N, int64_t block_n, int K, int group_size, Element weight_type, Element output_type, Element scale_type) {
#pragma clang fp contract(off)
  using namespace aoext::xpu;
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int own = static_cast<int>(item.get_global_id(1)), k = sycl::min(own, K - 1);
  const int64_t first = static_cast<int64_t>(item.get_group(0)) * kRows;
  const int rows = static_cast<int>(sycl::min(N - first, int64_t{kRows}));
  const unsigned size = static_cast<unsigned>(group_size), blocks = (static_cast<unsigned>(K) + size - 1) / size;
  const unsigned group = static_cast<unsigned>(k) / size;
  const bool packed = table != nullptr;
  const float own_value = packed ? table[sg.get_local_linear_id()] : 0.0f;
  const float whole = global_scale != nullptr ? *global_scale : 1.0f;
  for (int64_t n = first; n < first + rows; ++n) {
    const uint8_t byte = static_cast<const uint8_t*>(weight)[packed ? n * (K / 2) + k / 2 : n * K + k];
    float value;
    if (packed) {
      value = sycl::select_from_group(sg, own_value, (k % 2 == 0 ? byte : byte >> 4) & 15);
    } else if (weight_type == Element::int8) {
      value = static_cast<float>(static_cast<int8_t>(byte));
    } else {
      value = weight_type == Element::e4m3 ? e4m3_to_float(byte) : e5m2_to_float(byte);
    }
    const int64_t block = n / block_n * blocks + group;
    if (zero_point != nullptr) value -= zero_point[block];
    value = value * load_scale(scale, block, scale_type) * whole;
    if (own < K) store_float(out, n * K + k, output_type, value);
  }
}

// out[e, i] = table[codes[e, i]] · factors[e, i / 256] + offsets[e], i < count of each expert: nested scales (common/formats.h).
AOEXT_KERNEL(nested_scales)
(float* out, const uint8_t* codes, const float* table, const float* factors, const float* offsets, int64_t experts, int64_t count,
 int64_t factors_of_expert) {
#pragma clang fp contract(off)
  const auto item = aoext::xpu::this_item();
  const int64_t width = item.get_global_range(1);
  for (int64_t at = item.get_global_id(1); at < experts * count; at += width) {
    const int64_t expert = at / count, i = at % count;
    const float product = table[codes[at]] * factors[expert * factors_of_expert + i / 256];
    out[at] = product + offsets[expert];
  }
}

// K is a multiple of 32, and groups are of 8; weight begins at a multiple of 4 bytes, out of 16. scale is one float32 and
// zero_point null where scales lie in the blocks of codes.
AOEXT_KERNEL_256(dequantize_planes_wide)
(void* out, const void* weight, const void* scale, const void* zero_point, int64_t N, int K, int group_size, Code code,
 Element output_type, Element scale_type) {
  using namespace aoext::xpu;
  const Planes planes(code);
  const bool inside = planes.has_scales_inside();
  const auto item = this_item();
  const int own = static_cast<int>(item.get_global_id(1)) * kStep, k = sycl::min(own, K - kStep);
  const OwnScales scales{code,
                         planes,
                         {scale, zero_point, scale_type, N},
                         static_cast<unsigned>(group_size),
                         inside ? *static_cast<const float*>(scale) : 1.0f};
  const float middle = inside ? 0.0f : static_cast<float>(planes.middle());
  const int64_t first = static_cast<int64_t>(item.get_group(0)) * kRows, row_bytes = planes.row_bytes(K);
  const int rows = static_cast<int>(sycl::min(N - first, int64_t{kRows})), bytes = output_type == Element::fp32 ? 4 : 2;
  for (int64_t n = first; n < first + rows; ++n) {
    const char* const row = static_cast<const char*>(weight) + n * row_bytes;
    const CodeDwords codes = planes.step(row, k);
    char* const w = static_cast<char*>(out) + (n * K + k) * bytes;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const ScaleAndZero s = scales.at(row, n, k + 8 * p);
      Piece<8> piece;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const auto value = static_cast<int8_t>(codes[2 * p + i / 4] >> i % 4 * 8);
        piece[i] = dequantized(static_cast<float>(value) + middle, s, scales.whole);
      }
      store_piece(w + 8 * p * bytes, piece, output_type, own < K);
    }
  }
}

// Any K and alignment.
AOEXT_KERNEL(dequantize_planes_any)
(void* out, const void* weight, const void* scale, const void* zero_point, int64_t N, int K, int group_size, Code code,
 Element output_type, Element scale_type) {
  using namespace aoext::xpu;
  const Planes planes(code);
  const auto item = this_item();
  const int own = static_cast<int>(item.get_global_id(1)), k = sycl::min(own, K - 1);
  const OwnScales scales{code,
                         planes,
                         {scale, zero_point, scale_type, N},
                         static_cast<unsigned>(group_size),
                         planes.has_scales_inside() ? *static_cast<const float*>(scale) : 1.0f};
  const int64_t first = static_cast<int64_t>(item.get_group(0)) * kRows, row_bytes = planes.row_bytes(K);
  const int rows = static_cast<int>(sycl::min(N - first, int64_t{kRows}));
  for (int64_t n = first; n < first + rows; ++n) {
    const char* const row = static_cast<const char*>(weight) + n * row_bytes;
    const float value = dequantized(planes.at(row, k), scales.at(row, n, k), scales.whole);
    if (own < K) store_float(out, n * K + k, output_type, value);
  }
}
