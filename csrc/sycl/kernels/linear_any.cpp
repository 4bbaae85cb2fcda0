// Every product that no other kernel takes: any K, group size and alignment, element by element.
//
//   y[m, n] = (Σ_k x[m, k] · w[n, k]) · input_scale[m] · scale[n] + bias[n]        8-bit weights
//   y[m, n] =  Σ_k x[m, k] · (q[n, k] · scale[k / G, n] + zero_point[k / G, n]) · input_scale[m] + bias[n]        int4
//   y[m, n] =  Σ_k (x[m, k] · input_scale[m, k / H]) · (w[n, k] · scale[n / B, k / G] · global_scale) + bias[n]   blocks
//   y[m, n] =  Σ_k (x[m, k] · input_scale[m, k / H]) · ((q[n, k] · scale + zero_point) · global_scale) + bias[n]  planes
//
// Codes of 4 bits of a weight by blocks look up a table of 16 values, of which each lane holds one; integers of one are
// w − zero_point[n / B, k / G] where there are zero points. Codes of planes lie as common/layout.h says, their scales beside them
// as those of int4 or in their blocks.
//
// A sub-group computes 4 rows by 2 columns of y; its 16 lanes multiply neighbouring k. An element that is loaded
// serves 2 or 4 multiplications. Types are run-time arguments, with a switch for each load of 4 or 2 elements, so that
// one small kernel serves them all.
//
// A lane sums 64 products in float32 before it adds them to its total, and the totals of the lanes are added at the end,
// so that the error stays small for any K. Sums of int8 products are exact, and the total is an int32. Rows of experts are
// those of experts.h.
#include "any_operands.h"

namespace aoext::xpu {
namespace {

constexpr int kShortSum = 64;  // products that a lane adds in float32: exact for int8, as 64 · 2^14 < 2^24

// The products that a lane has summed: of 4 rows by 2 columns.
class Sums {
 public:
  // exact: of integers.
  explicit Sums(bool exact) : exact_(exact) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) short_[i] = total_[i] = 0, integers_[i] = 0;
  }

  void add(const Vector<float, kRows>& x, const Vector<float, kColumns>& w, bool inside) {
    float own[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) own[c] = inside ? w[c] : 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) short_[i] = sycl::fma(inside ? x[i / kColumns] : 0.0f, own[i % kColumns], short_[i]);
  }

  void end_short_sums() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (exact_) {
        integers_[i] += static_cast<int>(short_[i]);
      } else {
        total_[i] += short_[i];
      }
      short_[i] = 0;
    }
  }

  // That of all lanes for element `lane` of the 4 by 2.
  void of_lane(int lane, float& sum, int& integer) const {
    const auto sg = this_sub_group();
    sum = 0, integer = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (exact_) {
        const int all = sycl::reduce_over_group(sg, integers_[i], sycl::plus<int>());
        integer = lane == i ? all : integer;
      } else {
        const float all = sycl::reduce_over_group(sg, total_[i], sycl::plus<float>());
        sum = lane == i ? all : sum;
      }
    }
    if (exact_) sum = static_cast<float>(integer);
  }

 private:
  static constexpr int kCount = kRows * kColumns;

  const bool exact_;
  float short_[kCount], total_[kCount];
  int integers_[kCount];
};

template <By kBy>
inline void store(const Product& p, int64_t row, int64_t column, float sum, int integer) {
  constexpr bool kRows = kBy == By::rows;
  if (p.output_type == Element::int32) {
    static_cast<int*>(p.y)[row * p.N + column] = integer;
    return;
  }
  if (kRows && p.input_scale != nullptr) sum *= p.input_scale[row];
  if (kRows && p.weight_type != Element::int4 && p.scale != nullptr) sum *= load_float(p.scale, column, p.scale_type);
  if (p.bias != nullptr) sum += load_float(p.bias, column, p.bias_type);
  store_float(p.y, row * p.N + column, p.output_type, sum);
}

template <By kBy>
inline void linear_any(const Product& all, const Experts& experts, int64_t M, const Blocks& blocks) {
  const auto item = this_item();
  const auto sg = this_sub_group();
  const int lane = sg.get_local_linear_id();
  const int64_t pair = static_cast<int64_t>(item.get_group(1)) * sg.get_group_linear_range() + sg.get_group_linear_id();
  const int64_t first_column = pair * kColumns;
  const TileRows tile = rows_of_tile(item.get_group(0), kRows, M, experts);
  const int64_t row = tile.first_row + lane / kColumns, column = first_column + lane % kColumns;
  const bool stores = lane < kRows * kColumns && row < tile.end_row && column < all.N;
  if (tile.expert == kNobody) {
    if (stores) store_float(all.y, row * all.N + column, all.output_type, 0);
    return;
  }

  const Product p = of_expert<kBy>(all, blocks, tile);
  const Rows<kBy> x(p, blocks, tile);
  const Columns<kBy> w(p, blocks, tile.expert, first_column);
  Sums sums(kBy == By::rows && p.input_type == Element::int8 && p.weight_type != Element::int4);
  for (int block = 0; block < p.K; block += kShortSum * kLanes) {
    const int end = p.K - block < kShortSum * kLanes ? p.K : block + kShortSum * kLanes;
    // Lanes past K go on, so that control flow is uniform and the switches are branches, not masks.
    for (int first = block; first < end; first += kLanes) {
      const int k = sycl::min(first + lane, p.K - 1);
      sums.add(x.at(k), w.at(k), first + lane < p.K);
    }
    sums.end_short_sums();
  }
  float sum;
  int integer;
  sums.of_lane(lane, sum, integer);
  if (stores) store<kBy>(p, row, column, sum, integer);
}

}  // namespace
}  // namespace aoext::xpu

// zero_point is of int4 alone. y is int32 or a float; scale, input_scale and bias may be null.
AOEXT_KERNEL(linear_any)
(void* y, const void* x, const void* weight, const int* offsets, int experts, const void* scale, const void* zero_point,
 const float* input_scale, const void* bias, int64_t M, int64_t N, int K, int group_size, Element input_type, Element weight_type,
 Element output_type, Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<aoext::xpu::By::rows>({y, x, weight, scale, zero_point, input_scale, bias, N, K, group_size, input_type,
                                                weight_type, output_type, scale_type, bias_type},
                                               {offsets, experts}, M, {});
}

// A lut4 weight is codes of 4 bits [N, K/2] and has a table, others are codes of 8 bits [N, K]. input_scale is
// [M, ceil(K/input_group_size)] or null, scale [ceil(N/block_n), ceil(K/group_size)] of any of five types, zero_point int8 like
// scale or null.
AOEXT_KERNEL(linear_any_blocks)
(void* y, const void* x, const void* weight, const int* offsets, int experts, const float* table, const void* scale,
 const void* zero_point, const float* global_scale, int global_scales, const float* input_scale, const void* bias, int64_t M,
 int64_t N, int64_t block_n, int K, int group_size, int input_group_size, Element input_type, Element weight_type,
 Element output_type, Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<aoext::xpu::By::blocks>({y, x, weight, scale, zero_point, input_scale, bias, N, K, group_size,
                                                  input_type, weight_type, output_type, scale_type, bias_type},
                                                 {offsets, experts}, M,
                                                 {table, global_scale, global_scales, block_n, input_group_size});
}

// Codes lie as common/layout.h says. Where scales lie in their blocks, scale is one float32 for the weight and zero_point null.
AOEXT_KERNEL(linear_any_planes)
(void* y, const void* x, const void* weight, const int* offsets, int experts, const void* scale, const void* zero_point,
 const float* input_scale, const void* bias, int64_t M, int64_t N, int K, int group_size, int input_group_size, Code code,
 Element input_type, Element output_type, Element scale_type, Element bias_type) {
  using namespace aoext::xpu;
  linear_any<By::planes>({y, x, weight, scale, zero_point, input_scale, bias, N, K, group_size, input_type, Element::int8,
                          output_type, scale_type, bias_type},
                         {offsets, experts}, M, {nullptr, nullptr, 1, 1, input_group_size, code});
}
