// What linear_any.cpp multiplies: rows of x and columns of w, element by element, of any type and format.
#pragma once

#include "experts.h"
#include "float8.h"
#include "planes.h"
#include "scale.h"
#include "vector.h"

namespace aoext::xpu {

constexpr int kRows = 4, kColumns = 2;  // of y for a sub-group

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

// What a product by blocks has beyond one by rows, and one by planes: of that a global scale alone is in `scale`.
struct Blocks {
  const float *table, *global_scale;  // may be null
  int global_scales;                  // one for all experts, or one for each
  int64_t block_n;
  int input_group_size;
  Code code;
};

enum class By { rows, blocks, planes };

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
template <By kBy>
inline Product of_expert(const Product& p, const Blocks& blocks, const TileRows& rows) {
  int64_t weights = p.N * p.K, scales = p.N, zero_points = 0;
  Element zero_type = Element::int8;
  if constexpr (kBy == By::blocks) {
    scales = zero_points = ((p.N - 1) / blocks.block_n + 1) * groups_of(p.K, p.group_size);
  } else if (kBy == By::planes || p.weight_type == Element::int4) {
    scales = zero_points = groups_of(p.K, p.group_size) * p.N, zero_type = p.scale_type;
  }
  if constexpr (kBy == By::planes) {
    const Planes planes(blocks.code);
    weights = p.N * planes.row_bytes(p.K);
    if (planes.has_scales_inside()) scales = 1;
  }
  Product own = p;
  rows.move(own.weight, weights, p.weight_type);
  rows.move(own.scale, scales, p.scale_type);
  rows.move(own.zero_point, zero_points, zero_type);
  rows.move(own.bias, p.N, p.bias_type);
  return own;
}

// Rows of x, those past the last being the last.
template <By kBy>
class Rows {
  static constexpr bool kBlocks = kBy != By::rows;

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
template <By kBy>
class Columns {
  static constexpr bool kBlocks = kBy == By::blocks;

 public:
  Columns(const Product& p, const Blocks& blocks, int expert, int64_t first) : p_(p) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      n_[c] = sycl::min(first + c, p.N - 1);
      columns_[c] = static_cast<const char*>(p.weight) + n_[c] * p.K * bits_of(p.weight_type) / 8;
      if constexpr (kBlocks) scales_[c] = n_[c] / blocks.block_n * groups_of(p.K, p.group_size);
    }
    if constexpr (kBlocks) {
      if (p.weight_type == Element::lut4) own_value_ = blocks.table[this_sub_group().get_local_linear_id()];
      if (blocks.global_scale != nullptr) global_scale_ = blocks.global_scale[blocks.global_scales > 1 ? expert : 0];
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

template <>
class Columns<By::planes> {
 public:
  Columns(const Product& p, const Blocks& blocks, int /*expert*/, int64_t first)
      : code_(blocks.code),
        planes_(blocks.code),
        scales_{p.scale, p.zero_point, p.scale_type, p.N},
        group_size_(p.group_size),
        whole_(planes_.has_scales_inside() ? *static_cast<const float*>(p.scale) : 1.0f) {
    const int64_t row_bytes = planes_.row_bytes(p.K);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      n_[c] = sycl::min(first + c, p.N - 1);
      columns_[c] = static_cast<const char*>(p.weight) + n_[c] * row_bytes;
    }
  }

  Vector<float, kColumns> at(int k) const {
    return decode_all<kColumns>([&](int c) {
      const ScaleAndZero s = planes_.has_scales_inside() ? scale_inside<1>(code_, planes_.block(columns_[c], k), planes_.place(k))
                                                         : scales_.at(group_of(k, group_size_), n_[c]);
      return sycl::fma(planes_.at(columns_[c], k), s.scale, s.zero) * whole_;
    });
  }

 private:
  const Code code_;
  const Planes planes_;
  const GroupScales scales_;
  const int group_size_;
  const float whole_;
  int64_t n_[kColumns];
  const char* columns_[kColumns];
};

}  // namespace aoext::xpu
