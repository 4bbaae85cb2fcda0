#include "cuda/plan_scaled.h"

#include "cuda/choose_once.h"
#include "cuda/forced.h"

namespace aoext::cuda {
namespace {

// With fewer output columns than this, what the tensor cores cut off sums of float8 may show in a row of y.
constexpr int64_t kCutColumns = 32;
constexpr int64_t kScaledGroup = 128;  // k of a group of int4, below which scaling sums takes longer than multiplying in 16 bits
// int4_wgmma takes 1.08 to 1.13 times as long as its model says from 256 rows on, at the clock that power leaves it.
constexpr double kWeightOnly = 1.11;
// Microseconds that quantising x takes longer for sums of it than for numbers of 16 bits, and more for each number.
constexpr double kSums = 2, kSumming = 3e-7;
// And that a launch takes which makes numbers of 16 bits of x.
constexpr double kWidening = 2;

bool is_power_of_two_scale(const LinearProblem& p) { return p.scale == ScalarType::Float8_e8m0fnu; }

// The problem for the engine, by scales that it takes: as they are, or in float32.
ScalarType engine_scale(const LinearProblem& p) {
  if (scaled_wgmma_takes(scaled_linear(p, p.scale)) || is_power_of_two_scale(p)) return p.scale;
  return ScalarType::Float;
}

bool engine_takes(const LinearProblem& p, const Device& device, bool aligned, ScalarType scale) {
  return device.is_hopper() && aligned && p.M > 0 && p.N > 0 && scaled_wgmma_takes(scaled_linear(p, scale));
}

// int4_batch, which reads codes of x, in place of int4_wgmma, where this is faster by less than what widens x for it.
Int4Plan without_widening(const Int4Plan& plan, const LinearProblem& p, const Device& device) {
  const Int4Linear linear = int4_linear(p, plan.scale);
  const bool chosen = forced() == nullptr || !is_one_of(*forced(), Int4Kernel());
  if (!std::holds_alternative<Int4WgmmaConfig>(plan.kernel) || !chosen || !int4_batch_takes(linear)) return plan;
  const auto batch = choose_int4_batch(linear, device);
  const bool faster = batch.config.block_m > 0 && batch.microseconds < choose_int4_wgmma(linear, device).microseconds + kWidening;
  return faster ? Int4Plan{batch.config, plan.scale} : plan;
}

// By the kernels of weight-only int4, whatever is forced; nothing where they do not serve.
std::optional<ScaledPlan> by_weight_only(const LinearProblem& p, const Device& device, bool aligned) {
  if (p.code != Code::int4 || p.output == ScalarType::Float) return std::nullopt;
  LinearProblem wide = p;
  wide.input = p.output;
  const Int4Plan plan = without_widening(plan_int4(wide, device, aligned), p, device);
  using Plan = std::optional<ScaledPlan>;
  return std::visit(Overloaded{[](const auto&) { return Plan(); }, [&](const RingConfig& c) { return Plan({c, plan.scale}); },
                               [&](const DecodeConfig& c) { return Plan({c, plan.scale}); },
                               [&](const BatchConfig& c) { return Plan({c, plan.scale}); },
                               [&](const Int4WgmmaConfig& c) { return Plan({c, plan.scale}); },
                               [&](const MmaConfig& c) { return Plan({c, plan.scale}); }},
                    plan.kernel);
}

// Microseconds of a plan for weight-only int4 by wgmma; 0, so that it is taken, of other kernels, which serve few rows, and of
// short groups.
double weight_only_time(const LinearProblem& p, const ScaledPlan& plan, const Device& device) {
  if (!std::holds_alternative<Int4WgmmaConfig>(plan.kernel) || p.group_size < kScaledGroup) return 0;
  return kWeightOnly * choose_int4_wgmma(int4_linear(p, plan.scale), device).microseconds;
}

ScaledPlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const ScalarType scale = engine_scale(p);
  const bool exact = p.input == ScalarType::Char || p.N >= kCutColumns;
  const auto weight_only = by_weight_only(p, device, aligned);
  if (exact && engine_takes(p, device, aligned, scale)) {
    const auto choice = choose_scaled_wgmma(scaled_linear(p, scale), device);
    const double sums = kSums + kSumming * static_cast<double>(p.M * p.K);
    if (!weight_only || choice.microseconds + sums < weight_only_time(p, *weight_only, device))
      return {ScaledWgmmaConfig{choice.config}, scale};
  }
  if (weight_only) return *weight_only;
  return {ScaledAny{}, p.scale};
}

ScaledPlan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  if (is<ScaledWgmmaConfig>(f)) {
    const ScalarType scale = engine_scale(p);
    const ScaledLinear raw = scaled_linear(p, scale);
    return {
        forced_config<ScaledWgmmaConfig>(
            f, text(p), device, engine_takes(p, device, aligned, scale), [&] { return choose_scaled_wgmma(raw, device).config; },
            [&](const ScaledWgmmaConfig& c) { return scaled_wgmma_fits(raw, c); }),
        scale};
  }
  if (is<RingConfig>(f) || is<DecodeConfig>(f) || is<BatchConfig>(f) || is<Int4WgmmaConfig>(f) || is<MmaConfig>(f)) {
    const auto plan = by_weight_only(p, device, aligned);
    return plan ? *plan : choose(p, device, aligned);
  }
  if (is<Generic>(f)) return {};
  if (!takes_one_pass(p.K, device)) refuse_kernel(f, text(p), device);
  return {ScaledAny{}, p.scale};
}

}  // namespace

ScaledLinear scaled_linear(const LinearProblem& p, ScalarType scale) {
  ScaledLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K;
  raw.int4 = p.code == Code::int4;
  raw.x_group = raw.int4 ? p.K : p.input_group_size, raw.w_group = p.group_size, raw.block_n = p.block_n;
  raw.scale_n = raw.int4 ? 1 : w_groups(raw), raw.scale_k = raw.int4 ? p.N : 1;
  raw.type = element(p.input), raw.output = element(p.output);
  raw.scale_type = element(scale), raw.bias_type = element(p.bias);
  return raw;
}

ScaledPlan plan_scaled(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, ScaledKernel())) return forced_plan(*f, p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

std::string text(const ScaledPlan& plan) { return text(plan.kernel) + " | scale=" + torch::headeronly::toString(plan.scale); }

bool reads_codes(const Int4Plan& plan, int64_t M) {
  return (std::holds_alternative<RingConfig>(plan.kernel) && M <= kRingCodesRows) ||
         std::holds_alternative<DecodeConfig>(plan.kernel) || std::holds_alternative<BatchConfig>(plan.kernel);
}

bool quantizes(const ScaledPlan& plan) { return std::holds_alternative<BatchConfig>(plan.kernel); }

Explanation explain(const ScaledPlan& plan) {
  return std::visit(Overloaded{[](const Generic&) { return generic_explanation(); },
                               [](const ScaledAny&) { return explain_kernel("scaled_any"); },
                               [](const ScaledWgmmaConfig& c) { return explain_wgmma("scaled_wgmma", c); },
                               [&](const auto&) { return explain(*weight_only(plan)); }},
                    plan.kernel);
}

std::optional<Int4Plan> weight_only(const ScaledPlan& plan) {
  using Plan = std::optional<Int4Plan>;
  return std::visit(
      Overloaded{[](const Generic&) { return Plan(); }, [](const ScaledAny&) { return Plan(); },
                 [](const ScaledWgmmaConfig&) { return Plan(); }, [&](const auto& config) { return Plan({config, plan.scale}); }},
      plan.kernel);
}

}  // namespace aoext::cuda
