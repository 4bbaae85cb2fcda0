// Every product that no other kernel takes: any K, group size and alignment, element by element.
//
//   y[m, n] = (Σ_k x[m, k] · w[n, k]) · input_scale[m] · scale[n] + bias[n]        8-bit weights
//   y[m, n] =  Σ_k x[m, k] · (q[n, k] · scale[k / G, n] + zero_point[k / G, n]) + bias[n]        int4
//
// A sub-group computes 4 rows by 2 columns of y; its 16 lanes multiply neighbouring k. An element that is loaded
// serves 2 or 4 multiplications. Types are run-time arguments, with a switch for each load of 4 or 2 elements, so that
// one small kernel serves them all.
//
// A lane sums 64 products in float32 before it adds them to its total, and the totals of the lanes are added at the end,
// so that the error stays small for any K. Of int8 products these sums are exact, and the total is an int32.
#include "float8.h"
#include "kernel.h"
#include "numeric.h"
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
inline Vector<float, R> load(const char* const (&rows)[R], int k, int type) {
  const auto half = [&](int r) { return reinterpret_cast<const uint16_t*>(rows[r])[k]; };
  const auto byte = [&](int r) { return static_cast<uint8_t>(rows[r][k]); };
  switch (type) {
    case kBf16: return decode_all<R>([&](int r) { return bf16_to_float(half(r)); });
    case kFp16: return decode_all<R>([&](int r) { return fp16_to_float(half(r)); });
    case kFp32: return decode_all<R>([&](int r) { return reinterpret_cast<const float*>(rows[r])[k]; });
    case kInt8: return decode_all<R>([&](int r) { return static_cast<float>(static_cast<int8_t>(byte(r))); });
    case kE4m3: return decode_all<R>([&](int r) { return e4m3_to_float(byte(r)); });
    default: return decode_all<R>([&](int r) { return e5m2_to_float(byte(r)); });
  }
}

}  // namespace
}  // namespace aoext::xpu

// int4 weights have a zero_point, 8-bit ones none. y is int32 or a float; scale, input_scale and bias may be null.
AOEXT_KERNEL(linear_any)
(void* y, const void* x, const void* weight, const void* scale, const void* zero_point, const float* input_scale,
 const void* bias, int64_t M, int64_t N, int K, int group_size, int input_type, int weight_type, int output_type, int scale_type,
 int bias_type) {
  using namespace aoext::xpu;
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int64_t pair = static_cast<int64_t>(item.get_group(1)) * sg.get_group_linear_range() + sg.get_group_linear_id();
  const int64_t first_row = static_cast<int64_t>(item.get_group(0)) * kRows, first_column = pair * kColumns;
  const bool int4 = zero_point != nullptr, integers = input_type == kInt8 && !int4;
  const int64_t pitch = static_cast<int64_t>(K) * (input_type == kFp32 ? 4 : input_type == kBf16 || input_type == kFp16 ? 2 : 1);

  const char* rows[kRows];
  const char* columns[kColumns];
  int64_t n[kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = static_cast<const char*>(x) + sycl::min(first_row + r, M - 1) * pitch;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    n[c] = sycl::min(first_column + c, N - 1);
    columns[c] = static_cast<const char*>(weight) + n[c] * (int4 ? K / 2 : K);
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
      } else {
        w = load<kColumns>(columns, k, weight_type);
      }
      const auto v = load<kRows>(rows, k, input_type);
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
  if (output_type == kInt32) {
    static_cast<int*>(y)[row * N + column] = exact_result;
    return;
  }
  if (integers) result = static_cast<float>(exact_result);
  if (input_scale != nullptr) result *= input_scale[row];
  if (!int4 && scale != nullptr) result *= load_float(scale, column, scale_type);
  if (bias != nullptr) result += load_float(bias, column, bias_type);
  store_float(y, row * N + column, output_type, result);
}
