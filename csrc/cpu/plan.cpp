#include "cpu/plan.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <optional>

#include "common/e2m1.h"
#include "common/formats.h"
#include "cpu/few_rows.h"
#include "cpu/gemm_int4.h"
#include "cpu/isa.h"

namespace aoext::cpu {
namespace {

// From so many rows on packed weights with their scales are faster than codes.
constexpr int64_t kScaledRows = 48;

// Of fewer output channels a row may nearly cancel in all of them, so that the rounding of x, to fixed point or to limbs, shows.
constexpr int64_t kRoundedInputChannels = 8;

// Groups that limbs of bfloat16 pay for.
constexpr int64_t kLimbGroups = 32;

// Inputs that one bfloat16 is not exact enough for.
bool is_wide(const LinearProblem& p) { return p.input == ScalarType::Half || p.input == ScalarType::Float; }

const FewRows& few_rows(const LinearProblem& p) {
  switch (isa()) {
    case Isa::amx: return kAmx;
    case Isa::avx512: return is_wide(p) ? kAvx512Wide : kAvx512;
    case Isa::avxvnni:
    case Isa::avx2: return kAvx2;
    case Isa::i8mm: return is_wide(p) ? kI8mmWide : kI8mm;
    case Isa::dotprod: return kDotprod;
    case Isa::neon: return kNeon;
    case Isa::portable: return kPortable;
  }
  return kPortable;
}

int64_t few_rows_of_8bit(const LinearProblem& p) { return p.code == Code::int8 ? few_rows(p).int8 : few_rows(p).float8; }

Plan gemm(ScalarType compute) { return {Algorithm::gemm, compute}; }

// Whether two limbs of bfloat16 stand for an input. An infinity of e5m2 by a limb of 0 is NaN. Of float32 they leave 8 bits out,
// which show where zero points take most of a product away.
bool has_limbs(const LinearProblem& p) {
  const bool exact = p.input == ScalarType::Half;
  return is_wide(p) && p.N >= kRoundedInputChannels && p.code != Code::e5m2 && (exact || !p.subtracts_zero_point);
}

// bfloat16 where the operands are bfloat16's, whatever their width, and that pays.
Plan plan_gemm(const LinearProblem& p) {
  if (kernels().gemm_bf16_limbs != nullptr && has_limbs(p)) return {Algorithm::gemm_bf16_limbs, ScalarType::BFloat16};
  return gemm(kernels().gemm_bf16 == nullptr || is_wide(p) ? ScalarType::Float : ScalarType::BFloat16);
}

// Few enough rows, and groups of which words have whole ones or the other way round.
bool has_gemv_int4(const LinearProblem& p) {
  const bool power_of_two = (p.group_size & (p.group_size - 1)) == 0;
  const bool serves = p.group_size % kPad == 0 || (p.group_size >= 8 && p.group_size < kPad && power_of_two);
  return serves && p.M <= few_rows(p).int4;
}

bool has_int8_limbs() { return kernels().gemv_limbs2 != nullptr || kernels().gemv_limbs2_staged != nullptr; }

bool has_e2m1_limbs() { return kernels().gemv_e2m1_limbs2 != nullptr || kernels().gemv_e2m1_limbs2_staged != nullptr; }

}  // namespace

Plan plan_int4pack(const LinearProblem& p) {
  return has_gemm_int4_bf16(p.N, p.group_size) && !is_wide(p) ? plan_gemm(p) : gemm(ScalarType::Float);
}

Plan plan_int4(const LinearProblem& p) {
  const bool whole = p.group_size % kPad == 0;
  const bool grouped = whole || p.group_size == 32 || p.group_size == 64;
  if (grouped && p.N >= kRoundedInputChannels && has_int8_limbs()) {
    const FewRows& few = few_rows(p);
    if (p.output == ScalarType::Float)
      return p.M <= few.limbs3 ? Plan{Algorithm::gemv_limbs3, ScalarType::Char} : plan_int4_floats(p);
    // Rows of x share a tile's columns with the groups of 128 weights: four groups leave too few rows to pay.
    if (p.group_size >= 64 && p.M > 2 && p.M * kPad <= few.limbs2_packed * std::min(p.group_size, kPad))
      return {Algorithm::gemv_limbs2_packed, ScalarType::Char};
    if (p.M <= few.limbs2) return {Algorithm::gemv_limbs2, ScalarType::Char};
  }
  return plan_int4_floats(p);
}

Plan plan_int4_floats(const LinearProblem& p) {
  const bool power_of_two = (p.group_size & (p.group_size - 1)) == 0;
  if (has_gemv_int4(p)) return {Algorithm::gemv_int4, ScalarType::Float};
  if (is_wide(p) && kernels().gemm_int4_codes_limbs != nullptr && p.N >= kRoundedInputChannels && p.group_size % kLimbGroups == 0)
    return {Algorithm::gemm_bf16_limbs, ScalarType::BFloat16};
  const Plan plan = plan_int4pack(p);
  const bool both = shared_kernels().gemm_int4_codes != nullptr && shared_kernels().gemm_int4_bf16 != nullptr;
  const bool scaled = plan.compute == ScalarType::BFloat16 && both && p.N >= kRoundedChannels;
  if (scaled && p.group_size <= 32 && p.group_size >= 8 && power_of_two && p.M >= kScaledRows)
    return {Algorithm::gemm_int4_scaled, ScalarType::BFloat16};
  return plan;
}

Plan plan_rowwise(const LinearProblem& p) {
  const int64_t most = few_rows_of_8bit(p);
  const bool by_bf16 = kernels().gemv_8bit_bf16 != nullptr && !is_wide(p);
  return p.M <= most ? Plan{Algorithm::gemv_8bit, by_bf16 ? ScalarType::BFloat16 : ScalarType::Float} : plan_gemm(p);
}

namespace {

bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

// Groups that a gemv serves.
bool has_gemv_blockwise(const LinearProblem& p) {
  constexpr int64_t kShortest = 16;
  return p.group_size == p.K || p.group_size % kPad == 0 || (p.group_size >= kShortest && is_power_of_two(p.group_size));
}

// Whether a gemm that rounds values with their scales serves these, and the rounding does not show. Where zero points are taken
// off the product, the codes may be far larger than what is left of them.
bool has_gemm_of_scaled(const LinearProblem& p, const GemmBlockwise* gemm) {
  if (gemm == nullptr || is_wide(p) || p.N < kRoundedChannels || p.subtracts_zero_point) return false;
  const bool any_group = gemm->columns_of_scales == nullptr || p.group_size == p.K;
  return any_group || (p.group_size >= kEightCodes && is_power_of_two(p.group_size));
}

// Short groups whose scales cost so many rows of x more than rounded weights do.
bool has_many_rows_by_short_groups(const LinearProblem& p) { return p.M >= kScaledRows && p.group_size <= 32; }

}  // namespace

Plan plan_blockwise(const LinearProblem& p) {
  const Kernels& k = kernels();
  if (p.group_size == p.K) return plan_rowwise(p);
  if (has_gemv_blockwise(p) && p.M <= few_rows_of_8bit(p))
    return {Algorithm::gemv_blockwise,
            k.gemv_blockwise_bf16 != nullptr && !is_wide(p) ? ScalarType::BFloat16 : ScalarType::Float};
  constexpr int64_t kMultiple = 4;
  const bool scaled = has_gemm_of_scaled(p, k.gemm_8bit_bf16);
  if (k.gemm_8bit_groups != nullptr && p.group_size % kMultiple == 0 && !(scaled && has_many_rows_by_short_groups(p))) {
    if (!is_wide(p)) return {Algorithm::gemm_groups, ScalarType::BFloat16};
    if (has_limbs(p)) return {Algorithm::gemm_bf16_limbs, ScalarType::BFloat16};
  }
  return gemm(scaled ? ScalarType::BFloat16 : ScalarType::Float);
}

namespace {

bool is_e2m1(const float* table) {
  for (int i = 0; i < kE2m1Sign; ++i)
    if (table[i] != kE2m1Magnitudes[i] || table[kE2m1Sign + i] != -kE2m1Magnitudes[i]) return false;
  return true;
}

// By which limbs of int8 few rows meet codes of e2m1, or none.
std::optional<Plan> plan_e2m1_limbs(const LinearProblem& p) {
  const bool groups = p.group_size % kPad == 0 || p.group_size == 16 || p.group_size == 32 || p.group_size == 64;
  if (!groups || p.K % p.group_size != 0 || p.N < kRoundedInputChannels || !has_e2m1_limbs()) return {};
  const bool three = p.output == ScalarType::Float;
  if (p.M > (three ? few_rows(p).limbs3 : few_rows(p).limbs2)) return {};
  return Plan{three ? Algorithm::gemv_limbs3 : Algorithm::gemv_limbs2, ScalarType::Char};
}

}  // namespace

Plan plan_lut4(const LinearProblem& p, const float* table) {
  const Kernels& k = kernels();
  if (is_e2m1(table))
    if (const auto limbs = plan_e2m1_limbs(p)) return *limbs;
  bool finite = true, of_bf16 = true;
  for (int i = 0; i < 16; ++i) {
    finite &= std::isfinite(table[i]);
    of_bf16 &= (std::bit_cast<uint32_t>(table[i]) & 0xffff) == 0;
  }
  // Rows are filled up with codes of 0 and x of 0, whose product must be 0.
  if (!finite) return gemm(ScalarType::Float);
  if (has_gemv_blockwise(p) && p.M <= few_rows(p).lut4) {
    const bool by_bf16 = k.gemv_lut4_bf16 != nullptr && of_bf16 && !is_wide(p);
    return {Algorithm::gemv_blockwise, by_bf16 ? ScalarType::BFloat16 : ScalarType::Float};
  }
  const bool scaled = has_gemm_of_scaled(p, k.gemm_lut4_bf16);
  const bool groups = of_bf16 && (p.group_size % kEightCodes == 0 || p.group_size == p.K);
  if (k.gemm_lut4_groups != nullptr && groups && !(scaled && has_many_rows_by_short_groups(p))) {
    if (!is_wide(p)) return {Algorithm::gemm_groups, ScalarType::BFloat16};
    if (has_limbs(p)) return {Algorithm::gemm_bf16_limbs, ScalarType::BFloat16};
  }
  return gemm(scaled ? ScalarType::BFloat16 : ScalarType::Float);
}

Plan plan_scaled(const LinearProblem& p) {
  if (p.code != Code::int8) return plan_rowwise(p);
  if (kernels().gemv_i8 != nullptr && p.M <= few_rows(p).int8_by_int8) return {Algorithm::gemv_8bit, ScalarType::Char};
  return gemm(ScalarType::Char);
}

// Inputs of int8 have integer products, exact within a group or a packed block; those of float8, which are bfloat16 exactly, go
// as bfloat16 does. Weights are rounded only where the result is too.
Plan plan_scaled_int4(const LinearProblem& p) {
  const bool quantizes = is_high_precision(p.input);
  const bool int8 = (quantizes ? p.quantized : p.input) == ScalarType::Char;
  const bool whole = p.group_size % kPad == 0, grouped = whole || p.group_size == 32 || p.group_size == 64;
  if (int8) {
    const bool panels = kernels().gemv_limb != nullptr, rows = kernels().gemv_limb_staged != nullptr;
    if (grouped && p.M <= few_rows(p).int4_by_int8) {
      // One row of x leaves the time to memory, which is read faster row by row.
      if (rows && (p.M == 1 || !panels)) return {Algorithm::gemv_limb_staged, ScalarType::Char};
      if (panels) return {Algorithm::gemv_limb, ScalarType::Char};
    }
    const bool by_int8 = kernels().gemm_int4_i8 != nullptr && p.group_size % kEightCodes == 0;
    if (by_int8 || !has_gemv_int4(p)) return {Algorithm::gemm_int4_int8, by_int8 ? ScalarType::Char : ScalarType::Float};
    return {Algorithm::gemv_int4, ScalarType::Float};
  }
  if (has_gemv_int4(p)) return {Algorithm::gemv_int4, ScalarType::Float};
  const bool exact = shared_kernels().gemm_int4_codes != nullptr && p.group_size % kEightCodes == 0;
  return gemm(exact ? ScalarType::BFloat16 : ScalarType::Float);
}

int64_t segment_of(const LinearProblem& p) {
  if (p.input_group_size >= p.K) return p.group_size;
  return p.group_size >= p.K ? p.input_group_size : std::gcd(p.group_size, p.input_group_size);
}

Plan plan_scaled_blockwise(const LinearProblem& p) {
  const FewRows& few = few_rows(p);
  const bool by_bf16 = p.power_of_two && kernels().gemv_blockwise_bf16 != nullptr;
  const int64_t most = by_bf16 ? few.by_blocks : p.code == Code::int8 ? few.int8_by_blocks : few.float8_by_blocks;
  if (has_gemv_blockwise(p) && p.M <= most)
    return {Algorithm::gemv_blockwise, by_bf16 ? ScalarType::BFloat16 : ScalarType::Float};
  const int64_t segment = segment_of(p);
  const bool whole_words = segment == p.K || segment % kEightCodes == 0;
  const bool int8 = p.code == Code::int8;
  const bool has = int8 ? kernels().gemm_segments_i8 != nullptr : kernels().gemm_segments_bf16 != nullptr;
  return {Algorithm::gemm_segments, !whole_words || !has ? ScalarType::Float : int8 ? ScalarType::Char : ScalarType::BFloat16};
}

namespace {

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::gemv_limb: return "nibbles by int8";
    case Algorithm::gemv_limb_staged: return "rows of nibbles by int8";
    case Algorithm::gemv_limbs2: return "nibbles by two int8 limbs";
    case Algorithm::gemv_limbs3: return "nibbles by three int8 limbs";
    case Algorithm::gemv_limbs2_packed: return "tiles of nibbles by two int8 limbs";
    case Algorithm::gemv_int4: return "nibbles";
    case Algorithm::gemv_8bit: return "values";
    case Algorithm::gemv_blockwise: return "values by blocks";
    case Algorithm::gemm: return "tiles";
    case Algorithm::gemm_bf16_limbs: return "tiles by two bfloat16 limbs";
    case Algorithm::gemm_int4_int8: return "tiles of nibbles by int8";
    case Algorithm::gemm_segments: return "tiles by segments";
    case Algorithm::gemm_groups: return "tiles of blocks";
    case Algorithm::gemm_int4_scaled: return "tiles of scaled weights";
  }
  return "";
}

Explanation explain_kernel(const char* kernel) { return Explanation{"cpu", kernel}.with("instruction_set", isa_name()); }

}  // namespace

Explanation explain(const Plan& plan) {
  const char* compute = plan.compute == ScalarType::Float      ? "float32"
                        : plan.compute == ScalarType::BFloat16 ? "bfloat16"
                                                               : "int8";
  return explain_kernel(name_of(plan.algorithm)).with("compute", compute);
}

Explanation explain_rows(const Call& /*call*/) { return explain_kernel("row by row"); }

}  // namespace aoext::cpu
