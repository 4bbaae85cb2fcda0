#include "cpu/plan.h"

#include <algorithm>

#include "cpu/isa.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kPanelBytes = int64_t{4} << 20;

// Input rows up to which `dot` wins over panels of each dtype, and `nibbles` and `values` of int8 and float8 over `dot`;
// benchmarks/README.md has the measurements.
struct DotRows {
  int64_t bfloat16, float32, int8, nibbles, int8_values, float8_values;
};

DotRows dot_rows() {
  if (&kernels() == &kernels_avx512()) return {20, 64, 8, 4, 16, 12};
  if (&kernels() == &kernels_avx2()) return {0, 32, 64, 4, 4, 2};
  return {0, 16, 2, 2, 0, 0};
}

Plan make_plan(Algorithm algorithm, ScalarType compute, const LinearProblem& p) {
  const int64_t bytes = compute == ScalarType::Float ? 4 : compute == ScalarType::BFloat16 ? 2 : 1;
  const int64_t rows = std::max<int64_t>(64, kPanelBytes / (bytes * p.K) / 64 * 64);
  return {algorithm, compute, std::min(rows, std::max<int64_t>(p.N, 1))};
}

bool takes_values(const LinearProblem& p) {
  return p.M <= (p.weight == ScalarType::Char ? dot_rows().int8_values : dot_rows().float8_values);
}

}  // namespace

Plan plan_weight_only(const LinearProblem& p) {
  // ATen multiplies bfloat16 faster than float32 only where the CPU does.
  const bool bf16 = p.input == ScalarType::BFloat16 && has_avx512();
  if (p.M <= (bf16 ? dot_rows().bfloat16 : dot_rows().float32)) return make_plan(Algorithm::dot, ScalarType::Float, p);
  return make_plan(Algorithm::panel, bf16 ? ScalarType::BFloat16 : ScalarType::Float, p);
}

Plan plan_int4(const LinearProblem& p) {
  const bool power_of_two = (p.group_size & (p.group_size - 1)) == 0;
  const bool regular = p.group_size % kInt4Pad == 0 || (p.group_size >= 8 && p.group_size < kInt4Pad && power_of_two);
  return regular && p.M <= dot_rows().nibbles ? Plan{Algorithm::nibbles, ScalarType::Float, 0} : plan_weight_only(p);
}

Plan plan_rowwise(const LinearProblem& p) {
  return takes_values(p) ? Plan{Algorithm::values, ScalarType::Float, 0} : plan_weight_only(p);
}

Plan plan_scaled(const LinearProblem& p) {
  if (p.weight != ScalarType::Char) {
    if (takes_values(p)) return {Algorithm::values, ScalarType::Float, 0};
    return make_plan(p.M <= dot_rows().float32 ? Algorithm::dot : Algorithm::panel, ScalarType::Float, p);
  }
  if (p.M <= dot_rows().int8) return make_plan(Algorithm::dot, ScalarType::Char, p);
  // ATen's _int_mm is a plain loop without VNNI, and wrong for K = 1 (torch 2.13: it takes the weight's
  // transpose, whose strides are then ambiguous, for a row-major matrix).
  return make_plan(Algorithm::panel, has_avx512() && p.K > 1 ? ScalarType::Char : ScalarType::Float, p);
}

std::string describe(const Plan& plan) {
  const char* compute = plan.compute == ScalarType::Float      ? "float32"
                        : plan.compute == ScalarType::BFloat16 ? "bfloat16"
                                                               : "int8";
  std::string text = std::string("cpu/") + kernels().name + ": ";
  if (plan.algorithm == Algorithm::nibbles) return text + "nibbles, " + compute;
  if (plan.algorithm == Algorithm::values) return text + "values, " + compute;
  if (plan.algorithm == Algorithm::dot) return text + "dot, " + compute;
  return text + "panel of " + std::to_string(plan.panel_rows) + " rows, " + compute;
}

}  // namespace aoext::cpu
