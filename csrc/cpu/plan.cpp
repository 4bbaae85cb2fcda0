#include "cpu/plan_predicates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>

#include "common/e2m1.h"
#include "common/forced.h"
#include "common/formats.h"
#include "cpu/fixed_point_table.h"

namespace aoext::cpu {
namespace {

const FewRows& few_rows(Isa isa, const LinearProblem& p) {
  switch (isa) {
    case Isa::amx: return kAmx;
    case Isa::avx512: return is_wide(p) ? kAvx512Wide : kAvx512;
    case Isa::avxvnni:
    case Isa::avx2: return kAvx2;
    case Isa::i8mm: return is_wide(p) ? kI8mmWide : kI8mm;
    case Isa::dotprod: return kDotprod;
    case Isa::neon: return kNeon;
    case Isa::portable: break;
  }
  return kPortable;
}

bool is_e2m1_table(const float* table) {
  for (int i = 0; i < kE2m1Sign; ++i)
    if (table[i] != kE2m1Magnitudes[i] || table[kE2m1Sign + i] != -kE2m1Magnitudes[i]) return false;
  return true;
}

// ---- choosing ------------------------------------------------------------------------------------------

struct Candidate {
  Kernel kernel;
  bool (*takes)(const Choice& c);  // whether it gives what is promised
  bool (*pays)(const Choice& c);   // whether it is faster than those behind it
};
using Candidates = std::span<const Candidate>;

bool always(const Choice& /*c*/) { return true; }

std::string described(const LinearProblem& p) {
  return "M = " + std::to_string(p.M) + ", N = " + std::to_string(p.N) + ", K = " + std::to_string(p.K) +
         ", group_size = " + std::to_string(p.group_size);
}

// The first that the instruction set has, that takes the problem and pays. The last of all takes everything.
template <class... Lists>
Kernel choose(const Choice& c, const Lists&... lists) {
  const Candidates all[] = {lists...};
  const auto serves = [&](const Candidate& candidate) { return has(c.isa, candidate.kernel) && candidate.takes(c); };
  if (const Forced* const f = forced()) {
    bool is_ours = false;
    for (const Candidates& list : all)
      for (const Candidate& candidate : list) {
        if (f->kernel != name_of(candidate.kernel)) continue;
        if (serves(candidate)) return candidate.kernel;
        is_ours = true;
      }
    if (is_ours) refuse_kernel(*f, described(c.p), name_of(c.isa));
  }
  for (const Candidates& list : all)
    for (const Candidate& candidate : list)
      if (serves(candidate) && candidate.pays(c)) return candidate.kernel;
  return all[sizeof...(lists) - 1].back().kernel;
}

// ---- the products --------------------------------------------------------------------------------------

constexpr Candidate kInt4ByLimbs[] = {
    {Kernel::gemv_limbs3, takes_limbs3, pays_limbs3},
    {Kernel::gemv_limbs3_staged, takes_limbs3, pays_limbs3},
    // Rows of x share a tile's columns with the groups of 128 weights: four groups leave too few rows to pay.
    {Kernel::gemv_limbs2_packed, [](const Choice& c) { return takes_limbs2(c) && c.p.group_size >= 64; },
     [](const Choice& c) { return c.p.M > 2 && c.p.M * kPad <= c.few.limbs2_packed * std::min(c.p.group_size, kPad); }},
    {Kernel::gemv_limbs2, takes_limbs2, pays_limbs2},
    {Kernel::gemv_limbs2_staged, takes_limbs2, pays_limbs2},
};
constexpr Candidate kInt4[] = {
    {Kernel::gemv_int4, takes_gemv_int4, pays_gemv_int4},
    {Kernel::gemm_int4_codes_limbs,
     [](const Choice& c) { return is_wide(c.p) && c.p.N >= kRoundedInputChannels && c.p.group_size % kLimbGroups == 0; }, always},
    {Kernel::gemm_int4_bf16_columns,
     [](const Choice& c) { return takes_rounded_int4(c) && c.p.group_size >= kEightCodes && is_power_of_two(c.p.group_size); },
     has_many_rows_by_short_groups},
    {Kernel::gemm_int4_codes, takes_codes, always},
    {Kernel::gemm_int4_bf16, takes_rounded_int4, always},
    {Kernel::gemm_int4_f32, always, always},
};
constexpr Candidate kInt4Pack[] = {
    {Kernel::gemm_int4_codes, takes_codes, always},
    {Kernel::gemm_int4_bf16, takes_rounded_int4, always},
    {Kernel::gemm_int4_f32, always, always},
};

constexpr Candidate kRowwise[] = {
    {Kernel::gemv_8bit_bf16, is_narrow, pays_gemv_8bit},
    {Kernel::gemv_8bit_f32, always, pays_gemv_8bit},
    {Kernel::gemm_bf16_limbs, has_bf16_limbs, always},
    {Kernel::gemm_bf16, is_narrow, always},
    {Kernel::gemm_f32, always, always},
};
constexpr Candidate kBlockwise[] = {
    {Kernel::gemv_blockwise_bf16, [](const Choice& c) { return takes_gemv_blockwise(c) && is_narrow(c); }, pays_gemv_8bit},
    {Kernel::gemv_blockwise_f32, takes_gemv_blockwise, pays_gemv_8bit},
    {Kernel::gemm_8bit_bf16, takes_rounded, always},
    {Kernel::gemm_8bit_bf16_columns, takes_rounded_columns_of_8bit, has_many_rows_by_short_groups},
    {Kernel::gemm_8bit_groups, [](const Choice& c) { return is_narrow(c) && has_groups_of_four(c); }, always},
    {Kernel::gemm_8bit_groups_limbs, [](const Choice& c) { return has_bf16_limbs(c) && has_groups_of_four(c); }, always},
    {Kernel::gemm_8bit_bf16_columns, takes_rounded_columns_of_8bit, always},
    {Kernel::gemm_blockwise_f32, always, always},
};

constexpr Candidate kE2m1ByLimbs[] = {
    {Kernel::gemv_e2m1_limbs3, takes_e2m1_limbs3, pays_limbs3},
    {Kernel::gemv_e2m1_limbs3_staged, takes_e2m1_limbs3, pays_limbs3},
    {Kernel::gemv_e2m1_limbs2, takes_e2m1_limbs2, pays_limbs2},
    {Kernel::gemv_e2m1_limbs2_staged, takes_e2m1_limbs2, pays_limbs2},
};
// Rows are filled up with codes of 0 and x of 0, whose product must be 0: a table that is not finite goes by the last one.
constexpr Candidate kLut4[] = {
    {Kernel::gemv_lut4_bf16, [](const Choice& c) { return c.is_finite && c.is_bf16 && takes_gemv_blockwise(c) && is_narrow(c); },
     pays_gemv_lut4},
    {Kernel::gemv_lut4_i16, takes_lut4_i16, pays_gemv_lut4},
    {Kernel::gemv_lut4_f32, [](const Choice& c) { return c.is_finite && takes_gemv_blockwise(c); }, pays_gemv_lut4},
    {Kernel::gemm_lut4_bf16, takes_rounded, has_many_rows_by_short_groups},
    {Kernel::gemm_lut4_bf16_columns, takes_rounded_columns, has_many_rows_by_short_groups},
    {Kernel::gemm_lut4_groups, [](const Choice& c) { return is_narrow(c) && has_lut4_groups(c); }, always},
    {Kernel::gemm_lut4_groups_limbs, [](const Choice& c) { return has_bf16_limbs(c) && has_lut4_groups(c); }, always},
    {Kernel::gemm_lut4_bf16, takes_rounded, always},
    {Kernel::gemm_lut4_bf16_columns, takes_rounded_columns, always},
    {Kernel::gemm_blockwise_f32, always, always},
};

constexpr Candidate kPlanes[] = {
    {Kernel::gemv_row_limbs3, takes_row, pays_row<&FewByLimbs::three>},
    {Kernel::gemv_row_limbs2, [](const Choice& c) { return takes_row(c) && is_not_float(c); }, pays_row<&FewByLimbs::two>},
    {Kernel::gemv_planes_limbs3, takes_planes, pays_planes<&FewByLimbs::three>},
    {Kernel::gemv_planes_limbs2, [](const Choice& c) { return takes_planes(c) && is_not_float(c); },
     pays_planes<&FewByLimbs::two>},
};
// x of float8 goes as floats do.
constexpr Candidate kPlanesByInt8[] = {
    {Kernel::gemv_row_limb, has_rows_of_blocks, pays_row<&FewByLimbs::one>},
    {Kernel::gemv_planes_limb, has_segments_of<16>, pays_planes<&FewByLimbs::one>},
};

constexpr Candidate kInt8[] = {
    {Kernel::gemv_i8, always, [](const Choice& c) { return c.p.M <= c.few.int8_by_int8; }},
    {Kernel::gemm_i8, always, always},
};
// Inputs of int8 have integer products, exact within a group or a packed block; those of float8, which are bfloat16 exactly, go
// as bfloat16 does. Weights are rounded only where the result is too.
constexpr Candidate kScaledInt4[] = {
    // One row of x leaves the time to memory, which is read faster row by row.
    {Kernel::gemv_limb_staged, [](const Choice& c) { return is_int8(c) && has_limb_groups(c); },
     [](const Choice& c) { return pays_int4_by_int8(c) && (c.p.M == 1 || !has(c.isa, Kernel::gemv_limb)); }},
    {Kernel::gemv_limb, [](const Choice& c) { return is_int8(c) && has_limb_groups(c); }, pays_int4_by_int8},
    {Kernel::gemm_int4_i8, [](const Choice& c) { return is_int8(c) && takes_codes(c); }, always},
    {Kernel::gemv_int4, takes_gemv_int4, pays_gemv_int4},
    {Kernel::gemm_int4_codes, [](const Choice& c) { return !is_int8(c) && takes_codes(c); }, always},
    {Kernel::gemm_int4_codes_f32, is_int8, always},
    {Kernel::gemm_int4_f32, always, always},
};
constexpr Candidate kScaledBlockwise[] = {
    {Kernel::gemv_blockwise_bf16, [](const Choice& c) { return takes_gemv_blockwise(c) && c.p.power_of_two; },
     [](const Choice& c) { return c.p.M <= c.few.by_blocks; }},
    {Kernel::gemv_blockwise_f32, takes_gemv_blockwise,
     [](const Choice& c) {
       return !is_by_bf16(c) && c.p.M <= (c.p.code == Code::int8 ? c.few.int8_by_blocks : c.few.float8_by_blocks);
     }},
    {Kernel::gemm_segments_i8, [](const Choice& c) { return is_int8(c) && has_whole_words(c); }, always},
    {Kernel::gemm_segments_bf16, [](const Choice& c) { return !is_int8(c) && has_whole_words(c); }, always},
    {Kernel::gemm_segments_f32, always, always},
};

}  // namespace

Choice::Choice(const LinearProblem& p_, Isa isa_, const float* table) : p(p_), isa(isa_), few(few_rows(isa_, p_)) {
  if (table == nullptr) return;
  is_e2m1 = is_e2m1_table(table);
  is_i16 = in_fixed_point(table).is_close;
  for (int i = 0; i < 16; ++i) {
    is_finite &= std::isfinite(table[i]);
    is_bf16 &= (std::bit_cast<uint32_t>(table[i]) & 0xffff) == 0;
  }
}

int64_t segment_of(const LinearProblem& p) {
  if (p.input_group_size >= p.K) return p.group_size;
  return p.group_size >= p.K ? p.input_group_size : std::gcd(p.group_size, p.input_group_size);
}

Kernel plan_int4_floats(const Choice& c) { return choose(c, kInt4); }

Kernel plan_planes_floats(const Choice& c) { return choose(c, kBlockwise); }

Kernel plan_weight_only(const Choice& c) {
  if (is_in_planes(c.p.code)) return choose(c, kPlanes, kBlockwise);
  if (is_by_groups(c.p.code)) return choose(c, kInt4ByLimbs, kInt4);
  if (format_of(c.p.code).has_table) return choose(c, kE2m1ByLimbs, kLut4);
  return c.p.group_size == c.p.K ? choose(c, kRowwise) : choose(c, kBlockwise);
}

Kernel plan_scaled(const Choice& c) {
  if (is_in_planes(c.p.code))
    return is_int8(c) ? choose(c, kPlanesByInt8, kScaledBlockwise) : choose(c, kPlanes, kScaledBlockwise);
  if (is_by_groups(c.p.code)) return choose(c, kScaledInt4);
  if (!is_rowwise(c.p)) return choose(c, kScaledBlockwise);
  return is_int8(c) ? choose(c, kInt8) : choose(c, kRowwise);
}

Kernel plan_int8(const Choice& c) { return choose(c, kInt8); }

Kernel plan_int4pack(const Choice& c) { return choose(c, kInt4Pack); }

}  // namespace aoext::cpu
