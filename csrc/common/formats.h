// The number formats of the contract: which dtypes an argument may have, and the constants of quantisation.
#pragma once

#include <cstddef>
#include <iterator>
#include <numeric>

#include "common/layout.h"
#include "common/problem.h"

namespace aoext {

// Inputs, scales, biases and results.
constexpr bool is_high_precision(ScalarType t) {
  return t == ScalarType::BFloat16 || t == ScalarType::Half || t == ScalarType::Float;
}

constexpr bool is_float8(ScalarType t) { return t == ScalarType::Float8_e4m3fn || t == ScalarType::Float8_e5m2; }

constexpr bool is_8bit(ScalarType t) { return t == ScalarType::Char || is_float8(t); }

// Scales of blocks: float32, bfloat16 and float16, powers of two as float8_e8m0fnu or their exponents as uint8, and
// float8_e4m3fn.
constexpr bool is_block_scale(ScalarType t) {
  return is_high_precision(t) || t == ScalarType::Float8_e8m0fnu || t == ScalarType::Byte || t == ScalarType::Float8_e4m3fn;
}

// The largest magnitude that quantize_rowwise maps a row's absmax to.
constexpr float quantized_max(ScalarType t) {
  return t == ScalarType::Char ? 127.0f : t == ScalarType::Float8_e4m3fn ? 448.0f : 57344.0f;
}

// How a weight [N, K] of a code is stored, and what its scales and zero points mean. What checks, kernels and documents know of a
// format follows from its row; Python reads the same rows (aoext.formats).
struct Format {
  enum class Scales {
    groups,  // [K/group_size, N], each for group_size elements along k
    blocks,  // [ceil(N/block_n), ceil(K/block_k)]
    inside,  // in the blocks of codes, zero points too; what is beside them is one float32 for the weight
  };
  enum class Zero {
    none,
    added,       // w = code · scale + zero_point, a float of scale's dtype
    subtracted,  // w = (code − zero_point) · scale, an integer of the code's type; it may be left out
  };
  Code code;
  const char* name;
  ScalarType storage;  // the dtype that holds the elements, which lie as layout_of(code) says
  Scales scales;
  Zero zero;
  bool has_table;    // the code is an index into 16 float32 values, and the tensor may have one scale more
  unsigned folders;  // a bit for each device folder that knows the format; the generic kernels serve elsewhere
};

constexpr unsigned kCpu = 1, kCuda = 2, kSycl = 4, kAllFolders = kCpu | kCuda | kSycl;

constexpr Format kFormats[] = {
    {Code::int4, "int4", ScalarType::Char, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::int8, "int8", ScalarType::Char, Format::Scales::blocks, Format::Zero::subtracted, false, kAllFolders},
    {Code::e4m3, "e4m3", ScalarType::Float8_e4m3fn, Format::Scales::blocks, Format::Zero::none, false, kAllFolders},
    {Code::e5m2, "e5m2", ScalarType::Float8_e5m2, Format::Scales::blocks, Format::Zero::none, false, kAllFolders},
    {Code::lut4, "lut4", ScalarType::Byte, Format::Scales::blocks, Format::Zero::none, true, kAllFolders},
    {Code::int2, "int2", ScalarType::Byte, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::int3, "int3", ScalarType::Byte, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::int5, "int5", ScalarType::Byte, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::int6, "int6", ScalarType::Byte, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::int7, "int7", ScalarType::Byte, Format::Scales::groups, Format::Zero::added, false, kAllFolders},
    {Code::q4_0, "q4_0", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q4_1, "q4_1", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q5_0, "q5_0", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q5_1, "q5_1", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q8_0, "q8_0", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q2_k, "q2_k", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q3_k, "q3_k", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q4_k, "q4_k", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q5_k, "q5_k", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::q6_k, "q6_k", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::iq4_nl, "iq4_nl", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::iq4_xs, "iq4_xs", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::tq2_0, "tq2_0", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
    {Code::tq1_0, "tq1_0", ScalarType::Byte, Format::Scales::inside, Format::Zero::none, false, kAllFolders},
};

constexpr const Format& format_of(Code code) { return kFormats[static_cast<size_t>(code)]; }
constexpr bool is_code(int64_t code) { return code >= 0 && code < static_cast<int64_t>(std::size(kFormats)); }
constexpr bool is_by_groups(Code code) { return format_of(code).scales == Format::Scales::groups; }
constexpr bool has_scales_inside(Code code) { return format_of(code).scales == Format::Scales::inside; }

// The layouts of all formats.
constexpr auto kLayouts = [] {
  struct {
    Layout of[std::size(kFormats)];
  } all{};
  for (size_t i = 0; i < std::size(kFormats); ++i) all.of[i] = layout_of(static_cast<Code>(i));
  return all;
}();
constexpr const Layout& layout(Code code) { return kLayouts.of[static_cast<size_t>(code)]; }
constexpr bool is_packed(Code code) { return layout(code).values > 1; }
constexpr bool is_in_planes(Code code) { return layout(code).bytes > 1; }
constexpr int64_t row_bytes(Code code, int64_t K) { return K / layout(code).values * layout(code).bytes; }
constexpr ScalarType storage(Code code) { return format_of(code).storage; }

static_assert([] {
  for (int64_t i = 0; i < static_cast<int64_t>(std::size(kFormats)); ++i)
    if (static_cast<int64_t>(kFormats[i].code) != i) return false;
  return true;
}());

// Nested scales, as bitsandbytes has them where it quantises twice: uint8 codes, i of each [N, K/block_k], that are
//
//   scale[i] = table[kValues + code[i]] · global_scale[i / kTogether] + zero_point
//
// in float32, where the product rounds and then the sum: bitsandbytes' bits, on every device. The table has kValues entries for
// the weight's own codes before these. Where K has `groups` of them, `rows` is the fewest rows whose scales are whole blocks of
// kTogether, as many as `columns`: global_scale is [ceil(N / rows), columns], and of the last ones some may have no scales.
struct NestedScales {
  static constexpr int64_t kValues = 16, kCodes = 256, kTogether = 256;
  int64_t rows, columns;

  constexpr explicit NestedScales(int64_t groups)
      : rows(kTogether / std::gcd(groups, kTogether)), columns(groups / std::gcd(groups, kTogether)) {}
};

// Whether a weight's rows have one scale each, of high precision.
constexpr bool is_scaled_by_rows(const LinearProblem& p) {
  const Format& format = format_of(p.code);
  return format.scales == Format::Scales::blocks && !format.has_table && p.block_n == 1 && p.group_size == p.K &&
         is_high_precision(p.scale) && !p.subtracts_zero_point;
}

// Whether the sums of a product meet scales of rows alone: on both sides, and float32, where the input has scales.
constexpr bool is_rowwise(const LinearProblem& p) {
  const bool input_ok = p.input_group_size == 0 || (p.input_group_size == p.K && p.scale == ScalarType::Float);
  return is_scaled_by_rows(p) && input_ok;
}

}  // namespace aoext
