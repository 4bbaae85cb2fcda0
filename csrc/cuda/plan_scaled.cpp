#include "cuda/plan_scaled.h"

#include <optional>

#include "cuda/choose_once.h"
#include "cuda/fits.h"

namespace aoext::cuda {
namespace {

// With fewer output columns than this, what the tensor cores cut off sums of float8 may show in a row of y.
constexpr int64_t kCutColumns = 32;
constexpr int64_t kScaledGroup = 128;  // k of a group of int4, below which scaling sums takes longer than multiplying in 16 bits

bool is_power_of_two_scale(const LinearProblem& p) { return p.scale == ScalarType::Float8_e8m0fnu; }

// The problem for the engine, by scales that it takes: as they are, or in float32.
ScalarType engine_scale(const LinearProblem& p) {
  if (KernelOf<ScaledWgmmaConfig>::takes(scaled_linear(p, p.scale)) || is_power_of_two_scale(p)) return p.scale;
  return ScalarType::Float;
}

// int4_batch, which reads codes of x, in place of int4_wgmma, where this is faster by less than what widens x for it.
Int4Plan without_widening(const Int4Plan& plan, const LinearProblem& p, const Device& device) {
  using Batch = KernelOf<BatchConfig>;
  const Int4Linear linear = int4_linear(p, plan.scale);
  const bool chosen = forced_in<Int4Kernels>(p.experts) == nullptr;
  if (!std::holds_alternative<Int4WgmmaConfig>(plan.kernel) || !chosen || !Batch::takes(linear)) return plan;
  const auto batch = Batch::choose(linear, device);
  const double wgmma = KernelOf<Int4WgmmaConfig>::choose(linear, device).microseconds;
  const bool faster = batch.config.block_m > 0 && batch.microseconds < wgmma + fits_of(device).between.widening;
  return faster ? Int4Plan{batch.config, plan.scale} : plan;
}

// By the kernels of weight-only int4, whatever is forced; nothing where they do not serve.
std::optional<ScaledPlan> by_weight_only(const LinearProblem& p, const Device& device, bool aligned) {
  if (p.code != Code::int4 || p.output == ScalarType::Float) return std::nullopt;
  LinearProblem wide = p;
  wide.input = p.output;
  const Int4Plan plan = without_widening(plan_int4(wide, device, aligned), p, device);
  if (is_generic(plan.kernel) || std::holds_alternative<Int4Any>(plan.kernel)) return std::nullopt;
  return ScaledPlan{plan.kernel, plan.scale};
}

// Microseconds of a plan for weight-only int4 by wgmma; 0, so that it is taken, of other kernels, which serve few rows, and of
// short groups.
double weight_only_time(const LinearProblem& p, const ScaledPlan& plan, const Device& device) {
  if (!std::holds_alternative<Int4WgmmaConfig>(*plan.weight_only()) || p.group_size < kScaledGroup) return 0;
  const double model = KernelOf<Int4WgmmaConfig>::choose(int4_linear(p, plan.scale), device).microseconds;
  return fits_of(device).between.weight_only * model;
}

// Whether the engine may serve, as far as sizes are asked.
bool is_regular(const LinearProblem& p, const Device& device, bool aligned) {
  return takes_one_pass(p.K, device) && aligned && p.M > 0 && p.N > 0 && !p.subtracts_zero_point;
}

ScaledPlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  using Engine = KernelOf<ScaledWgmmaConfig>;
  if (!takes_one_pass(p.K, device)) return {};
  if (p.subtracts_zero_point) return p.experts > 0 ? ScaledPlan{ScaledKernels(ScaledAny{}), p.scale} : ScaledPlan{};
  const ScalarType scale = engine_scale(p);
  const ScaledLinear raw = scaled_linear(p, scale);
  const bool exact = p.input == ScalarType::Char || p.N >= kCutColumns;
  const auto weight_only = by_weight_only(p, device, aligned);
  if (exact && device.features.cover(Engine::kNeeds) && is_regular(p, device, aligned) && Engine::takes(raw)) {
    const BetweenFit& fit = fits_of(device).between;
    const auto choice = Engine::choose(raw, device);
    const double sums = fit.sums + fit.summing * static_cast<double>(p.M * p.K);
    if (!weight_only || choice.microseconds + sums < weight_only_time(p, *weight_only, device))
      return {ScaledKernels(choice.config), scale};
  }
  if (weight_only) return *weight_only;
  return {ScaledKernels(ScaledAny{}), p.scale};
}

ScaledPlan plan_forced(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  const ScalarType scale = engine_scale(p);
  const ScaledKernels kernel = forced_kernel<ScaledKernels>(
      f, text(p), scaled_linear(p, scale), device, takes_one_pass(p.K, device) && (!p.subtracts_zero_point || p.experts > 0),
      is_regular(p, device, aligned));
  if (is_generic(kernel)) return {};
  return {kernel, std::holds_alternative<ScaledAny>(kernel) ? p.scale : scale};
}

}  // namespace

ScaledLinear scaled_linear(const LinearProblem& p, ScalarType scale) {
  ScaledLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K;
  raw.weight_type = element(p.code);
  const bool int4 = is_int4(raw);
  raw.x_group = int4 ? p.K : p.input_group_size, raw.w_group = p.group_size, raw.block_n = p.block_n;
  raw.scale_n = int4 ? 1 : w_groups(raw), raw.scale_k = int4 ? p.N : 1;
  raw.type = element(p.input), raw.output = element(p.output);
  raw.scale_type = element(scale), raw.bias_type = element(p.bias);
  raw.experts = p.experts;
  return raw;
}

ScaledPlan plan_scaled(const LinearProblem& p, const Device& device, bool aligned) {
  if (const Forced* const f = forced_in<ScaledKernels>(p.experts)) return plan_forced(*f, p, device, aligned);
  if (const Forced* const f = forced_in<Int4Kernels>(p.experts); f != nullptr && f->kernel != KernelOf<Int4Any>::kName)
    if (const auto plan = by_weight_only(p, device, aligned)) return *plan;
  if (forced_in<Int4Kernels>(p.experts) != nullptr) return choose(p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

std::string text(const ScaledPlan& plan) {
  const std::string kernel = std::visit([](const auto& list) { return text(list); }, plan.kernel);
  return kernel + " | scale=" + torch::headeronly::toString(plan.scale);
}

bool reads_codes(const Int4Kernels& kernel, int64_t M) {
  return (std::holds_alternative<RingConfig>(kernel) && M <= kRingCodesRows) || std::holds_alternative<DecodeConfig>(kernel) ||
         std::holds_alternative<BatchConfig>(kernel) || std::holds_alternative<GroupedRingConfig>(kernel);
}

bool quantizes(const ScaledPlan& plan) {
  return plan.weight_only() != nullptr && std::holds_alternative<BatchConfig>(*plan.weight_only());
}

std::string instance(const ScaledPlan& plan, const LinearProblem& p) {
  if (const Int4Kernels* const kernel = plan.weight_only()) return instance(*kernel, int4_linear(p, plan.scale));
  return instance(std::get<ScaledKernels>(plan.kernel), scaled_linear(p, plan.scale));
}

Explanation explain(const ScaledPlan& plan, const LinearProblem& /*p*/) {
  return std::visit([](const auto& list) { return explain(list); }, plan.kernel);
}

}  // namespace aoext::cuda
