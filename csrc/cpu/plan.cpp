#include "cpu/plan.h"

#include "cpu/isa.h"

namespace aoext::cpu {
namespace {

// Input rows up to which an algorithm is the fastest; benchmarks/cpu.md says how to measure around one.
struct Most {
  int64_t planes, fine_planes, plane_tiles;     // beyond: tiles; plane_tiles by groups of 128
  int64_t nibbles, int8_values, float8_values;  // likewise
  int64_t dot_int8;                             // int8 by int8 likewise
};

// From here on scaled_tiles are faster than tiles.
constexpr int64_t kScaledTiles = 48;

// Of fewer output columns a row may nearly cancel in all of them, so that the rounding of x, to fixed point or to limbs, shows.
constexpr int64_t kRoundedInputColumns = 8;

// Groups that limbs pay for.
constexpr int64_t kLimbGroups = 32;

// Inputs that one bfloat16 is not exact enough for.
bool is_wide(const LinearProblem& p) { return p.input == ScalarType::Half || p.input == ScalarType::Float; }

Most most(const LinearProblem& p) {
#ifdef __x86_64__
  if (&kernels() == &kernels_amx()) return {8, 8, 16, 4, 4, 4, 4};
  if (&kernels() == &kernels_avx512()) return is_wide(p) ? Most{16, 8, 0, 4, 8, 8, 2} : Most{8, 8, 0, 4, 4, 4, 4};
  if (&kernels() == &kernels_avxvnni() || &kernels() == &kernels_avx2()) return {16, 8, 0, 2, 8, 4, 4};
#endif
  return {0, 0, 0, 2, 0, 0, 0};
}

Plan tiles(ScalarType compute) { return {Algorithm::tiles, compute}; }

// bfloat16 where the operands are bfloat16's, whatever their width, and that pays.
Plan plan_products(const LinearProblem& p) {
  // An infinity of e5m2 by a limb of 0 is NaN.
  if (is_wide(p) && kernels().limbs != nullptr && p.N >= kRoundedInputColumns && p.code != Code::e5m2)
    return {Algorithm::limb_tiles, ScalarType::BFloat16};
  return tiles(kernels().bf16 == nullptr || is_wide(p) ? ScalarType::Float : ScalarType::BFloat16);
}

}  // namespace

Plan plan_int4pack(const LinearProblem& p) {
  return &tiles_of_int4(p.N, p.group_size) == kernels().f32 || is_wide(p) ? tiles(ScalarType::Float) : plan_products(p);
}

Plan plan_int4(const LinearProblem& p) {
  const bool whole = p.group_size % kPad == 0;
  const bool grouped = whole || p.group_size == 32 || p.group_size == 64;
  if (grouped && p.N >= kRoundedInputColumns && kernels().planes != nullptr) {
    if (p.output == ScalarType::Float)
      return p.M <= most(p).fine_planes ? Plan{Algorithm::fine_planes, ScalarType::Char} : plan_int4_floats(p);
    // Rows of x share a tile's columns with the groups of 128 weights: four groups leave too few rows to pay.
    if (p.group_size >= 64 && p.M > 2 && p.M * kPad <= most(p).plane_tiles * std::min(p.group_size, kPad))
      return {Algorithm::plane_tiles, ScalarType::Char};
    if (p.M <= most(p).planes) return {Algorithm::planes, ScalarType::Char};
  }
  return plan_int4_floats(p);
}

Plan plan_int4_floats(const LinearProblem& p) {
  const bool whole = p.group_size % kPad == 0;
  const bool power_of_two = (p.group_size & (p.group_size - 1)) == 0;
  if ((whole || (p.group_size >= 8 && p.group_size < kPad && power_of_two)) && p.M <= most(p).nibbles)
    return {Algorithm::nibbles, ScalarType::Float};
  if (is_wide(p) && kernels().limbs_int4 != nullptr && p.N >= kRoundedInputColumns && p.group_size % kLimbGroups == 0)
    return {Algorithm::limb_tiles, ScalarType::BFloat16};
  const Plan plan = plan_int4pack(p);
  const bool scaled = plan.compute == ScalarType::BFloat16 && kernels().bf16->weights_int4 != nullptr && p.N >= kRoundedColumns;
  if (scaled && p.group_size <= 32 && p.group_size >= 8 && power_of_two && p.M >= kScaledTiles)
    return {Algorithm::scaled_tiles, ScalarType::BFloat16};
  return plan;
}

Plan plan_rowwise(const LinearProblem& p) {
  const int64_t values = p.code == Code::int8 ? most(p).int8_values : most(p).float8_values;
  const bool by_bf16 = kernels().values_bf16 != nullptr && !is_wide(p);
  return p.M <= values ? Plan{Algorithm::values, by_bf16 ? ScalarType::BFloat16 : ScalarType::Float} : plan_products(p);
}

Plan plan_scaled(const LinearProblem& p) {
  if (p.code != Code::int8) return plan_rowwise(p);
  if (kernels().dot_i8 != nullptr && p.M <= most(p).dot_int8) return {Algorithm::values, ScalarType::Char};
  return tiles(ScalarType::Char);
}

namespace {

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::planes: return "planes of nibbles";
    case Algorithm::fine_planes: return "fine planes of nibbles";
    case Algorithm::plane_tiles: return "tiles of planes of nibbles";
    case Algorithm::nibbles: return "nibbles";
    case Algorithm::values: return "values";
    case Algorithm::tiles: return "tiles";
    case Algorithm::limb_tiles: return "tiles by two limbs";
    case Algorithm::scaled_tiles: return "tiles of scaled weights";
  }
  return "";
}

Explanation explain_kernel(const char* kernel) { return Explanation{"cpu", kernel}.with("instruction_set", kernels().name); }

}  // namespace

Explanation explain(const Plan& plan) {
  const char* compute = plan.compute == ScalarType::Float      ? "float32"
                        : plan.compute == ScalarType::BFloat16 ? "bfloat16"
                                                               : "int8";
  return explain_kernel(name_of(plan.algorithm)).with("compute", compute);
}

Explanation explain_rows(const Call& /*call*/) { return explain_kernel("row by row"); }

}  // namespace aoext::cpu
