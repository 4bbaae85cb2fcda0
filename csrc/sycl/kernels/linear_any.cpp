// Every product that no other kernel takes: any K, group size and alignment, element by element.
//
//   y[m, n] = (Σ_k x[m, k] · w[n, k]) · input_scale[m] · scale[n] + bias[n]        8-bit weights
//   y[m, n] =  Σ_k x[m, k] · (q[n, k] · scale[k / G, n] + zero_point[k / G, n]) · input_scale[m] + bias[n]        int4
//   y[m, n] =  Σ_k (x[m, k] · input_scale[m, k / H]) · (w[n, k] · scale[n / B, k / G] · global_scale) + bias[n]   blocks
//
// Codes of 4 bits of a weight by blocks look up a table of 16 values, of which each lane holds one; integers of one are
// w − zero_point[n / B, k / G] where there are zero points.
//
// A sub-group computes 4 rows by 2 columns of y; its 16 lanes multiply neighbouring k. An element that is loaded
// serves 2 or 4 multiplications. Types are run-time arguments, with a switch for each load of 4 or 2 elements, so that
// one small kernel serves them all.
//
// A lane sums 64 products in float32 before it adds them to its total, and the totals of the lanes are added at the end,
// so that the error stays small for any K. Sums of int8 products are exact, and the total is an int32. Rows of experts are
// those of experts.h.
#include "experts.h"
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

// The operands of a sub-group. Scales and zero points by blocks of a row are contiguous.
struct Product {
  void* y;
  const void *x, *weight, *scale, *zero_point;
  const float* input_scale;
  const void* bias;
  int64_t N;
  int K, group_size;
  Element input_type, weight_type, output_type, scale_type, bias_type;
};

// What a product by blocks has beyond one by rows.
struct Blocks {
  const float *table, *global_scale;  // may be null
  int64_t block_n;
  int input_group_size;
};

// ceil(K / size)
inline unsigned groups_of(int K, int size) {
  return (static_cast<unsigned>(K) + static_cast<unsigned>(size) - 1) / static_cast<unsigned>(size);
}

inline unsigned group_of(int k, int size) { return static_cast<unsigned>(k) / static_cast<unsigned>(size); }

// A code of 4 bits, in the low ones.
inline uint32_t nibble(const char* row, int k) {
  const uint32_t byte = static_cast<uint8_t>(row[k / 2]);
  return k % 2 == 0 ? byte : byte >> 4;
}

// The product of one expert's rows by its weight. The first expert's operands are moved, too: a branch around it makes Arc A770
// spill.
template <bool kBlocks>
inline Product of_expert(const Product& p, const Blocks& blocks, const TileRows& rows) {
  const bool packed = p.weight_type == Element::int4 || p.weight_type == Element::lut4;
  int64_t scales = p.N, zero_points = 0;
  Element zero_type = Element::int8;
  if constexpr (kBlocks) {
    scales = zero_points = ((p.N - 1) / blocks.block_n + 1) * groups_of(p.K, p.group_size);
  } else if (packed) {
    scales = zero_points = groups_of(p.K, p.group_size) * p.N, zero_type = p.scale_type;
  }
  Product own = p;
  rows.move(own.weight, p.N * p.K, p.weight_type);
  rows.move(own.scale, scales, p.scale_type);
  rows.move(own.zero_point, zero_points, zero_type);
  rows.move(own.bias, p.N, p.bias_type);
  return own;
}

// Rows of x, those past the last being the last.
template <bool kBlocks>
class Rows {
 public:
  Rows(const Product& p, const Blocks& blocks, const TileRows& tile) : type_(p.input_type) {
    const int64_t pitch = int64_t{p.K} * bits_of(type_) / 8;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = sycl::min(tile.first_row + r, tile.end_row - 1);
      rows_[r] = static_cast<const char*>(p.x) + row * pitch;
      if constexpr (kBlocks) scales_[r] = p.input_scale + row * groups_of(p.K, blocks.input_group_size);
    }
    if constexpr (kBlocks) scaled_ = p.input_scale != nullptr, group_size_ = blocks.input_group_size;
  }

  Vector<float, kRows> at(int k) const {
    auto values = load<kRows>(rows_, k, type_);
    if constexpr (kBlocks) {
      if (scaled_) {
        const unsigned group = group_of(k, group_size_);
#pragma unroll
        for (int r = 0; r < kRows; ++r) values[r] *= scales_[r][group];
      }
    }
    return values;
  }

 private:
  Element type_;
  const char* rows_[kRows];
  const float* scales_[kRows];
  int group_size_ = 0;
  bool scaled_ = false;
};

// Columns of w, those past the last being the last.
template <bool kBlocks>
class Columns {
 public:
  Columns(const Product& p, const Blocks& blocks, int64_t first) : p_(p) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      n_[c] = sycl::min(first + c, p.N - 1);
      columns_[c] = static_cast<const char*>(p.weight) + n_[c] * p.K * bits_of(p.weight_type) / 8;
      if constexpr (kBlocks) scales_[c] = n_[c] / blocks.block_n * groups_of(p.K, p.group_size);
    }
    if constexpr (kBlocks) {
      if (p.weight_type == Element::lut4) own_value_ = blocks.table[this_sub_group().get_local_linear_id()];
      if (blocks.global_scale != nullptr) global_scale_ = *blocks.global_scale;
    }
  }

  // By blocks with their scales, of int4 with scales and zero points.
  Vector<float, kColumns> at(int k) const {
    if constexpr (kBlocks) {
      const auto codes = p_.weight_type == Element::lut4 ? from_table(k) : load<kColumns>(columns_, k, p_.weight_type);
      return scaled(codes, group_of(k, p_.group_size));
    } else {
      return p_.weight_type == Element::int4 ? int4(k) : load<kColumns>(columns_, k, p_.weight_type);
    }
  }

 private:
  Vector<float, kColumns> int4(int k) const {
    const int64_t group = group_of(k, p_.group_size) * p_.N;
    return decode_all<kColumns>([&](int c) {
      const int q = static_cast<int32_t>(nibble(columns_[c], k) << 28) >> 28;
      return sycl::fma(static_cast<float>(q), load_float(p_.scale, group + n_[c], p_.scale_type),
                       load_float(p_.zero_point, group + n_[c], p_.scale_type));
    });
  }

  Vector<float, kColumns> from_table(int k) const {
    const auto sg = this_sub_group();
    return decode_all<kColumns>([&](int c) { return sycl::select_from_group(sg, own_value_, nibble(columns_[c], k) & 15); });
  }

  Vector<float, kColumns> scaled(Vector<float, kColumns> codes, unsigned group) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (p_.zero_point != nullptr) codes[c] -= static_cast<const int8_t*>(p_.zero_point)[scales_[c] + group];
      codes[c] = codes[c] * load_scale(p_.scale, scales_[c] + group, p_.scale_type) * global_scale_;
    }
    return codes;
  }

  const Product& p_;
  int64_t n_[kColumns];
  const char* columns_[kColumns];
  int64_t scales_[kColumns];
  float own_value_ = 0, global_scale_ = 1;
};

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

template <bool kBlocks>
inline void store(const Product& p, int64_t row, int64_t column, float sum, int integer) {
  if (p.output_type == Element::int32) {
    static_cast<int*>(p.y)[row * p.N + column] = integer;
    return;
  }
  if (!kBlocks && p.input_scale != nullptr) sum *= p.input_scale[row];
  if (!kBlocks && p.weight_type != Element::int4 && p.scale != nullptr) sum *= load_float(p.scale, column, p.scale_type);
  if (p.bias != nullptr) sum += load_float(p.bias, column, p.bias_type);
  store_float(p.y, row * p.N + column, p.output_type, sum);
}

template <bool kBlocks>
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

  const Product p = of_expert<kBlocks>(all, blocks, tile);
  const Rows<kBlocks> x(p, blocks, tile);
  const Columns<kBlocks> w(p, blocks, first_column);
  Sums sums(!kBlocks && p.input_type == Element::int8 && p.weight_type != Element::int4);
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
  if (stores) store<kBlocks>(p, row, column, sum, integer);
}

}  // namespace
}  // namespace aoext::xpu

// zero_point is of int4 alone. y is int32 or a float; scale, input_scale and bias may be null.
AOEXT_KERNEL(linear_any)
(void* y, const void* x, const void* weight, const int* offsets, int experts, const void* scale, const void* zero_point,
 const float* input_scale, const void* bias, int64_t M, int64_t N, int K, int group_size, Element input_type, Element weight_type,
 Element output_type, Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<false>({y, x, weight, scale, zero_point, input_scale, bias, N, K, group_size, input_type, weight_type,
                                 output_type, scale_type, bias_type},
                                {offsets, experts}, M, {});
}

// A lut4 weight is codes of 4 bits [N, K/2] and has a table, others are codes of 8 bits [N, K]. input_scale is
// [M, ceil(K/input_group_size)] or null, scale [ceil(N/block_n), ceil(K/group_size)] of any of five types, zero_point int8 like
// scale or null.
AOEXT_KERNEL(linear_any_blocks)
(void* y, const void* x, const void* weight, const int* offsets, int experts, const float* table, const void* scale,
 const void* zero_point, const float* global_scale, const float* input_scale, const void* bias, int64_t M, int64_t N,
 int64_t block_n, int K, int group_size, int input_group_size, Element input_type, Element weight_type, Element output_type,
 Element scale_type, Element bias_type) {
  aoext::xpu::linear_any<true>({y, x, weight, scale, zero_point, input_scale, bias, N, K, group_size, input_type, weight_type,
                                output_type, scale_type, bias_type},
                               {offsets, experts}, M, {table, global_scale, block_n, input_group_size});
}
