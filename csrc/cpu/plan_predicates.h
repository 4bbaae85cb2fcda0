// What plan.cpp chooses by: whether a kernel takes a problem, and whether it pays.
#pragma once

#include <algorithm>
#include <numeric>

#include "cpu/plan.h"

namespace aoext::cpu {

// From so many rows on packed weights with their scales are faster than codes.
constexpr int64_t kScaledRows = 48;

// With fewer output channels int4 weights that are rounded to bfloat16, zero point included, may show in a row of y.
constexpr int64_t kRoundedChannels = 64;

// With fewer output channels a row may nearly cancel in all of them, so that the rounding of x, to fixed point or to limbs,
// shows.
constexpr int64_t kRoundedInputChannels = 8;

// Integers come in words of eight.
constexpr int64_t kEightCodes = 8;

// Groups that limbs of bfloat16 pay for.
constexpr int64_t kLimbGroups = 32;

// ---- what kernels take ---------------------------------------------------------------------------------

inline bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

// Whether two limbs of bfloat16 stand for an input. An infinity of e5m2 by a limb of 0 is NaN. They leave 8 bits of
// float32 out, which show where zero points take most of a product away.
inline bool has_bf16_limbs(const Choice& c) {
  const bool exact = c.p.input == ScalarType::Half;
  return is_wide(c.p) && c.p.N >= kRoundedInputChannels && c.p.code != Code::e5m2 && (exact || !c.p.subtracts_zero_point);
}

inline bool is_narrow(const Choice& c) { return !is_wide(c.p); }

// Groups that whole words of int8 limbs fit.
inline bool has_limb_groups(const Choice& c) {
  return c.p.group_size % kPad == 0 || c.p.group_size == 32 || c.p.group_size == 64;
}
inline bool takes_limbs3(const Choice& c) { return has_limb_groups(c) && c.p.N >= kRoundedInputChannels; }
inline bool takes_limbs2(const Choice& c) { return takes_limbs3(c) && c.p.output != ScalarType::Float; }

inline bool takes_e2m1_limbs3(const Choice& c) {
  return c.is_e2m1 && (has_limb_groups(c) || c.p.group_size == 16) && c.p.K % c.p.group_size == 0 &&
         c.p.N >= kRoundedInputChannels;
}
inline bool takes_e2m1_limbs2(const Choice& c) { return takes_e2m1_limbs3(c) && c.p.output != ScalarType::Float; }

// Groups of which words have whole ones or the other way round.
inline bool takes_gemv_int4(const Choice& c) {
  const int64_t g = c.p.group_size;
  return g % kPad == 0 || (g >= kEightCodes && g < kPad && is_power_of_two(g));
}

inline bool takes_codes(const Choice& c) { return is_narrow(c) && c.p.group_size % kEightCodes == 0; }
inline bool takes_rounded_int4(const Choice& c) { return is_narrow(c) && c.p.N >= kRoundedChannels; }

inline bool takes_gemv_blockwise(const Choice& c) {
  constexpr int64_t kShortest = 16;
  const int64_t g = c.p.group_size;
  return g == c.p.K || g % kPad == 0 || (g >= kShortest && is_power_of_two(g));
}

// x in 15 bits shows in half results from which a bias takes most.
inline bool takes_lut4_i16(const Choice& c) {
  return c.is_i16 && takes_gemv_blockwise(c) && c.p.output == ScalarType::BFloat16 && c.p.N >= kRoundedInputChannels;
}

// Whether values that are rounded with their scales do not show. Where zero points are taken off the product, the codes may be
// far larger than what is left of them.
inline bool takes_rounded(const Choice& c) {
  const bool beside = c.p.subtracts_zero_point || (is_in_planes(c.p.code) && has_zero_points_beside(c.p));
  return is_narrow(c) && c.p.N >= kRoundedChannels && !beside && c.is_finite;
}
inline bool has_columns_of_groups(const Choice& c) {
  return c.p.group_size == c.p.K || (c.p.group_size >= kEightCodes && is_power_of_two(c.p.group_size));
}
inline bool takes_rounded_columns(const Choice& c) { return takes_rounded(c) && has_columns_of_groups(c); }
// Zero points of planes are rounded with them.
inline bool takes_rounded_columns_of_8bit(const Choice& c) {
  return is_narrow(c) && c.p.N >= kRoundedChannels && !c.p.subtracts_zero_point && has_columns_of_groups(c);
}

inline bool has_groups_of_four(const Choice& c) { return c.p.group_size % 4 == 0; }
inline bool has_lut4_groups(const Choice& c) {
  return c.is_finite && c.is_bf16 && (c.p.group_size % kEightCodes == 0 || c.p.group_size == c.p.K);
}

inline bool is_int8(const Choice& c) { return c.p.input == ScalarType::Char; }

inline bool has_whole_words(const Choice& c) {
  const int64_t segment = segment_of(c.p);
  return segment == c.p.K || segment % kEightCodes == 0;
}

// Segments that vectors of codes fit.
template <int64_t kShortest>
bool has_segments_of(const Choice& c) {
  return std::gcd(kPad, is_int8(c) ? segment_of(c.p) : c.p.group_size) >= kShortest;
}
inline bool takes_planes(const Choice& c) { return has_segments_of<16>(c) && c.p.N >= kRoundedInputChannels; }

// Blocks that hold a scale, or one and a factor a group; x has scales of whole ones.
inline bool has_rows_of_blocks(const Choice& c) {
  const Layout& of = layout(c.p.code);
  const bool whole = !is_int8(c) || c.p.input_group_size >= c.p.K || c.p.input_group_size % of.values == 0;
  return whole && has_scales_inside(c.p.code) && (of.values == 32 || (of.scale.has_factor() && !of.looks_up));
}
inline bool takes_row(const Choice& c) { return has_rows_of_blocks(c) && c.p.N >= kRoundedInputChannels; }
inline bool is_not_float(const Choice& c) { return c.p.output != ScalarType::Float; }

// ---- when they pay -------------------------------------------------------------------------------------

inline bool pays_limbs3(const Choice& c) { return c.p.output == ScalarType::Float && c.p.M <= c.few.limbs3; }
inline bool pays_limbs2(const Choice& c) { return c.p.M <= c.few.limbs2; }
inline bool pays_gemv_int4(const Choice& c) { return c.p.M <= c.few.int4; }
inline bool pays_gemv_8bit(const Choice& c) { return c.p.M <= (c.p.code == Code::int8 ? c.few.int8 : c.few.float8); }
inline bool pays_gemv_lut4(const Choice& c) { return c.p.M <= c.few.lut4; }
inline bool pays_int4_by_int8(const Choice& c) { return c.p.M <= c.few.int4_by_int8; }

inline bool has_signed_codes(const Choice& c) { return layout(c.p.code).code.is_signed || layout(c.p.code).looks_up; }
inline bool pays_by_limbs(const Choice& c, const FewByLimbs& few, int64_t FewByLimbs::* limbs) {
  return c.p.M <= few.*limbs && (limbs != &FewByLimbs::three || c.p.output == ScalarType::Float);
}
template <int64_t FewByLimbs::* kLimbs>
bool pays_row(const Choice& c) {
  return pays_by_limbs(c, has_signed_codes(c) ? c.few.signed_row : c.few.row, kLimbs);
}
template <int64_t FewByLimbs::* kLimbs>
bool pays_planes(const Choice& c) {
  return pays_by_limbs(c, has_signed_codes(c) ? c.few.signed_planes : c.few.planes, kLimbs);
}

// Short groups whose scales cost so many rows of x more than rounded weights do.
inline bool has_many_rows_by_short_groups(const Choice& c) { return c.p.M >= kScaledRows && c.p.group_size <= 32; }

// Whether an input's blocks are powers of two, so that its values are bfloat16 exactly, and the CPU multiplies these.
inline bool is_by_bf16(const Choice& c) { return c.p.power_of_two && has(c.isa, Kernel::gemv_blockwise_bf16); }

}  // namespace aoext::cpu
