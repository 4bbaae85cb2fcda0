// Every product that no other kernel takes: any K, group size and alignment, element by element.
//
//   y[m, n] = (Σ_k x[m, k] · w[n, k]) · input_scale[m] · scale[n] + bias[n]        8-bit weights
//   y[m, n] =  Σ_k x[m, k] · (q[n, k] · scale[k / G, n] + zero_point[k / G, n]) · input_scale[m] + bias[n]        int4
//   y[m, n] =  Σ_k (x[m, k] · input_scale[m, k / H]) · (w[n, k] · scale[n / B, k / G] · global_scale) + bias[n]   blocks
//
// Codes of 4 bits of a weight by blocks look up a table of 16 values, of which each lane holds one.
//
// A sub-group computes 4 rows by 2 columns of y; its 16 lanes multiply neighbouring k. An element that is loaded
// serves 2 or 4 multiplications. Types are run-time arguments, with a switch for each load of 4 or 2 elements, so that
// one small kernel serves them all.
//
// A lane sums 64 products in float32 before it adds them to its total, and the totals of the lanes are added at the end,
// so that the error stays small for any K. Sums of int8 products are exact, and the total is an int32.
#include "float8.h"
#include "kernel.h"
#include "numeric.h"
#include "scale.h"
#include "vector.h"

namespace aoext::xpu {
namespace {

constexpr int kRows = 4, kColumns = 2;
constexpr int kShortSum = 64;  // products that a lane adds in float32: exact for int8, as 64 · 2^14 < 2^24

template <int R, class Decode>
inline Vector<float, R> decode_all(const Decode& decode) {
  Vector<float, R> values;
#pragma unroll
  for (int r = 0; r < R; ++r) values[r] = decode(r);
  return values;
}

// Element k of R rows, of x or of 8-bit weights.
template <int R>
inline Vector<float, R> load(const char* const (&rows)[R], int k, Element type) {
  const auto half = [&](int r) { return reinterpret_cast<const uint16_t*>(rows[r])[k]; };
  const auto byte = [&](int r) { return static_cast<uint8_t>(rows[r][k]); };
  switch (type) {
    case Element::bf16: return decode_all<R>([&](int r) { return bf16_to_float(half(r)); });
    case Element::fp16: return decode_all<R>([&](int r) { return fp16_to_float(half(r)); });
    case Element::fp32: return decode_all<R>([&](int r) { return reinterpret_cast<const float*>(rows[r])[k]; });
    case Element::int8: return decode_all<R>([&](int r) { return static_cast<float>(static_cast<int8_t>(byte(r))); });
    case Element::e4m3: return decode_all<R>([&](int r) { return e4m3_to_float(byte(r)); });
    default: return decode_all<R>([&](int r) { return e5m2_to_float(byte(r)); });
  }
}

// What a product by blocks has beyond one by rows; scales of a row are contiguous.
struct Blocks {
  const float *table, *global_scale;  // may be null
  int64_t block_n;
  int group_size, input_group_size;
};

template <bool kBlocks>
inline void linear_any(void* y, const void* x, const void* weight, const void* scale, const void* zero_point,
                       const float* input_scale, const void* bias, int64_t M, int64_t N, int K, int group_size,
                       Element input_type, Element weight_type, Element output_type, Element scale_type, Element bias_type,
                       const Blocks& blocks) {
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int64_t pair = static_cast<int64_t>(item.get_group(1)) * sg.get_group_linear_range() + sg.get_group_linear_id();
  const int64_t first_row = static_cast<int64_t>(item.get_group(0)) * kRows, first_column = pair * kColumns;
  const bool int4 = !kBlocks && zero_point != nullptr, integers = !kBlocks && input_type == Element::int8 && !int4;
  const bool packed = int4 || (kBlocks && blocks.table != nullptr);
  const int64_t pitch = static_cast<int64_t>(K) * (input_type == Element::fp32                                  ? 4
                                                   : input_type == Element::bf16 || input_type == Element::fp16 ? 2
                                                                                                                : 1);

  const char* rows[kRows];
  const char* columns[kColumns];
  int64_t n[kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = static_cast<const char*>(x) + sycl::min(first_row + r, M - 1) * pitch;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    n[c] = sycl::min(first_column + c, N - 1);
    columns[c] = static_cast<const char*>(weight) + n[c] * (packed ? K / 2 : K);
  }
  // Products by blocks: what a lane looks up for others, and where the scales of rows and columns start.
  float own_value = 0, global_scale = 1;
  const float* row_scales[kRows];
  int64_t column_scales[kColumns];
  if constexpr (kBlocks) {
    if (packed) own_value = blocks.table[lane];
    if (blocks.global_scale != nullptr) global_scale = *blocks.global_scale;
    const auto count = [&](int size) { return (static_cast<unsigned>(K) + size - 1u) / static_cast<unsigned>(size); };
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      row_scales[r] = input_scale + sycl::min(first_row + r, M - 1) * count(blocks.input_group_size);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) column_scales[c] = n[c] / blocks.block_n * count(blocks.group_size);
  }

  float short_sum[kRows][kColumns], total[kRows][kColumns];
  int exact[kRows][kColumns];
#pragma unroll
  for (int i = 0; i < kRows * kColumns; ++i) {
    short_sum[i / kColumns][i % kColumns] = total[i / kColumns][i % kColumns] = 0;
    exact[i / kColumns][i % kColumns] = 0;
  }
  for (int block = 0; block < K; block += kShortSum * kLanes) {
    const int end = K - block < kShortSum * kLanes ? K : block + kShortSum * kLanes;
    // Lanes past K go on, so that control flow is uniform and the switches are branches, not masks.
    for (int first = block; first < end; first += kLanes) {
      const int k = sycl::min(first + lane, K - 1);
      const bool inside = first + lane < K;
      Vector<float, kColumns> w;
      if (int4) {
        const int64_t group = static_cast<unsigned>(k) / static_cast<unsigned>(group_size) * N;
        w = decode_all<kColumns>([&](int c) {
          const uint32_t byte = static_cast<uint8_t>(columns[c][k / 2]);
          const int q = static_cast<int32_t>(byte << (k % 2 == 0 ? 28 : 24)) >> 28;
          return sycl::fma(static_cast<float>(q), load_float(scale, group + n[c], scale_type),
                           load_float(zero_point, group + n[c], scale_type));
        });
      } else if (packed) {
        w = decode_all<kColumns>([&](int c) {
          const uint32_t byte = static_cast<uint8_t>(columns[c][k / 2]);
          return sycl::select_from_group(sg, own_value, (k % 2 == 0 ? byte : byte >> 4) & 15);
        });
      } else {
        w = load<kColumns>(columns, k, weight_type);
      }
      auto v = load<kRows>(rows, k, input_type);
      if constexpr (kBlocks) {
        const unsigned group = static_cast<unsigned>(k) / static_cast<unsigned>(blocks.group_size);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) w[c] = w[c] * load_scale(scale, column_scales[c] + group, scale_type) * global_scale;
        if (input_scale != nullptr) {
          const unsigned input_group = static_cast<unsigned>(k) / static_cast<unsigned>(blocks.input_group_size);
#pragma unroll
          for (int r = 0; r < kRows; ++r) v[r] *= row_scales[r][input_group];
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) w[c] = inside ? w[c] : 0.0f;
#pragma unroll
      for (int i = 0; i < kRows * kColumns; ++i) {
        float& sum = short_sum[i / kColumns][i % kColumns];
        sum = sycl::fma(inside ? v[i / kColumns] : 0.0f, w[i % kColumns], sum);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows * kColumns; ++i) {
      float& sum = short_sum[i / kColumns][i % kColumns];
      if (integers) {
        exact[i / kColumns][i % kColumns] += static_cast<int>(sum);
      } else {
        total[i / kColumns][i % kColumns] += sum;
      }
      sum = 0;
    }
  }

  // Lane i < 8 stores element i of the 4 by 2.
  float result = 0;
  int exact_result = 0;
#pragma unroll
  for (int i = 0; i < kRows * kColumns; ++i) {
    if (integers) {
      const int sum = sycl::reduce_over_group(sg, exact[i / kColumns][i % kColumns], sycl::plus<int>());
      exact_result = lane == i ? sum : exact_result;
    } else {
      const float sum = sycl::reduce_over_group(sg, total[i / kColumns][i % kColumns], sycl::plus<float>());
      result = lane == i ? sum : result;
    }
  }
  const int64_t row = first_row + lane / kColumns, column = first_column + lane % kColumns;
  if (lane >= kRows * kColumns || row >= M || column >= N) return;
  if (output_type == Element::int32) {
    static_cast<int*>(y)[row * N + column] = exact_result;
    return;
  }
  if (integers) result = static_cast<float>(exact_result);
  if (!kBlocks && input_scale != nullptr) result *= input_scale[row];
  if (!kBlocks && !int4 && scale != nullptr) result *= load_float(scale, column, scale_type);
  if (bias != nullptr) result += load_float(bias, column, bias_type);
  store_float(y, row * N + column, output_type, result);
}

}  // namespace
}  // namespace aoext::xpu

// int4 weights have a zero_point, 8-bit ones none. y is int32 or a float; scale, input_scale and bias may be null.
AOEXT_KERNEL(linear_any)
(void* y, const void* x, const void* weight, const void* scale, const void* zero_point, const float* input_scale,
 const void* bias, int64_t M, int64_t N, int K, int group_size, Element input_type, Element weight_type, Element output_type,
 Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<false>(y, x, weight, scale, zero_point, input_scale, bias, M, N, K, group_size, input_type, weight_type,
                                output_type, scale_type, bias_type, {});
}

// With a table the weight is codes of 4 bits [N, K/2], without of 8 bits [N, K]. input_scale is [M, ceil(K/input_group_size)] or
// null, scale [ceil(N/block_n), ceil(K/group_size)] of any of five types.
AOEXT_KERNEL(linear_any_blocks)
(void* y, const void* x, const void* weight, const float* table, const void* scale, const float* global_scale,
 const float* input_scale, const void* bias, int64_t M, int64_t N, int64_t block_n, int K, int group_size, int input_group_size,
 Element input_type, Element weight_type, Element output_type, Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<true>(y, x, weight, scale, nullptr, input_scale, bias, M, N, K, group_size, input_type, weight_type,
                               output_type, scale_type, bias_type, {table, global_scale, block_n, group_size, input_group_size});
}
