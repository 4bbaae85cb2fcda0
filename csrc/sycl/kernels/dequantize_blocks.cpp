// Weights by blocks to high precision: w [N, K] = (((value − zero_point) · scale) · global_scale), in float32, rounded once.
// Values are codes of 8 bits, or those that codes of 4 bits look up in a table, of which each lane holds one. A sub-group walks
// 32 rows along n, its lanes side by side along k.
#include "kernel.h"
#include "scale.h"

namespace aoext::xpu {
namespace {

constexpr int kRows = 32;

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
