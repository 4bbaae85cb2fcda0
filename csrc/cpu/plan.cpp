#include "cpu/plan.h"

#include <algorithm>

#include "cpu/isa.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kPanelBytes = int64_t{4} << 20;

// Input rows up to which `dot` wins; benchmarks/README.md has the measurements.
constexpr int64_t kDotRows = 6;
constexpr int64_t kDotRowsInt8 = 8;

Plan make_plan(Algorithm algorithm, ScalarType compute, const LinearProblem& p) {
  const int64_t bytes = compute == ScalarType::Float ? 4 : compute == ScalarType::BFloat16 ? 2 : 1;
  const int64_t rows = std::max<int64_t>(64, kPanelBytes / (bytes * p.K) / 64 * 64);
  return {algorithm, compute, std::min(rows, std::max<int64_t>(p.N, 1))};
}

}  // namespace

Plan plan_weight_only(const LinearProblem& p) {
  if (p.M <= kDotRows) return make_plan(Algorithm::dot, ScalarType::Float, p);
  // ATen multiplies bfloat16 faster than float32 only where the CPU does.
  const bool bf16 = p.input == ScalarType::BFloat16 && has_avx512();
  return make_plan(Algorithm::panel, bf16 ? ScalarType::BFloat16 : ScalarType::Float, p);
}

Plan plan_scaled(const LinearProblem& p) {
  if (p.weight == ScalarType::Char) {
    // ATen's _int_mm is a plain loop without VNNI, and wrong for K = 1 (torch 2.13: it takes the weight's
    // transpose, whose strides are then ambiguous, for a row-major matrix).
    const bool use_int_mm = has_avx512() && p.K > 1;
    return make_plan(p.M <= kDotRowsInt8 || !use_int_mm ? Algorithm::dot : Algorithm::panel, ScalarType::Char, p);
  }
  return make_plan(p.M <= kDotRows ? Algorithm::dot : Algorithm::panel, ScalarType::Float, p);
}

std::string describe(const Plan& plan) {
  const char* compute = plan.compute == ScalarType::Float      ? "float32"
                        : plan.compute == ScalarType::BFloat16 ? "bfloat16"
                                                               : "int8";
  std::string text = std::string("cpu/") + kernels().name + ": ";
  if (plan.algorithm == Algorithm::dot) return text + "dot, " + compute;
  return text + "panel of " + std::to_string(plan.panel_rows) + " rows, " + compute;
}

}  // namespace aoext::cpu
