// What GPUs tell of their plans (generic/plans.h), and what a plan is chosen among.
#include <algorithm>
#include <map>
#include <type_traits>

#include "common/dispatcher.h"
#include "common/library.h"
#include "cuda/fits.h"
#include "cuda/forced.h"
#include "cuda/gpus.h"
#include "cuda/kernels/choice.h"
#include "cuda/plan.h"
#include "cuda/plan_blocks.h"
#include "cuda/plan_grouped_int4.h"
#include "cuda/plan_rowwise.h"
#include "cuda/plan_scaled.h"
#include "cuda/plan_tinygemm.h"
#include "generic/plans.h"

namespace aoext::cuda {
namespace {

std::string instance(const Int4Linear& p, const Int4Kernel& kernel) {
  return std::visit(
      Overloaded{[](const auto&) { return std::string(); }, [&](const RingConfig& c) { return int4_ring_instance(p, c); },
                 [&](const DecodeConfig& c) { return int4_decode_instance(p, c); },
                 [&](const BatchConfig& c) { return int4_batch_instance(p, c); },
                 [&](const Int4WgmmaConfig& c) { return int4_wgmma_instance(p, c); },
                 [&](const MmaConfig& c) { return int4_mma_instance(p, c); }},
      kernel);
}

std::string instance(const RowwiseLinear& p, const RowwiseKernel& kernel) {
  return std::visit(Overloaded{[](const auto&) { return std::string(); },
                               [&](const RowwiseDecodeConfig& c) { return rowwise_decode_instance(p, c); },
                               [&](const RowwiseWgmmaConfig& c) { return rowwise_wgmma_instance(p, c); },
                               [&](const WeightOnlyWgmmaConfig& c) { return weight_only_wgmma_instance(p, c); },
                               [&](const RowwiseMmaConfig& c) { return rowwise_mma_instance(p, c); }},
                    kernel);
}

// A line for the plan, and one for the instance of the kernel's template that it launches, empty where there is but one.
std::string int4_text(const LinearProblem& p, const Device& device) {
  const Int4Plan plan = plan_int4(p, device, true);
  return text(plan) + "\n" + instance(int4_linear(p, plan.scale), plan.kernel);
}

std::string grouped_int4_text(const LinearProblem& p, const Device& device) {
  const GroupedInt4Plan plan = plan_grouped_int4(p, device, true);
  GroupedInt4Linear linear = grouped_int4_linear(p);
  linear.scale_type = element(plan.scale);
  const std::string name =
      std::visit(Overloaded{[](const auto&) { return std::string(); },
                            [&](const GroupedRingConfig& c) { return int4_grouped_ring_instance(linear, c); },
                            [&](const GroupedWgmmaConfig& c) { return int4_grouped_wgmma_instance(linear, c); }},
                 plan.kernel);
  return text(plan) + "\n" + name;
}

std::string rowwise_text(const LinearProblem& p, const Device& device) {
  const RowwisePlan plan = plan_rowwise(p, device, true);
  return text(plan) + "\n" + instance(rowwise_linear(p, plan.K), plan.kernel);
}

std::string scaled_linear_text(const LinearProblem& p, const Device& device) {
  const RowwisePlan plan = plan_scaled_linear(p, device, true);
  LinearProblem product = p;
  if (!plan.quantizes) product.input = storage(p.code);
  RowwiseLinear linear = rowwise_linear(product, plan.K);
  linear.quantizes = plan.quantizes;
  return text(plan) + "\n" + instance(linear, plan.kernel);
}

// Of one scale a row, whose kernels are those of row-wise weights.
std::string blocks_text(const LinearProblem& p, const Device& device) {
  if (is_rowwise(p)) return rowwise_text(p, device);
  const BlocksPlan plan = plan_blocks(p, device, true);
  const BlockLinear linear = block_linear(p);
  const std::string name = std::visit(Overloaded{[](const auto&) { return std::string(); },
                                                 [&](const BlocksDecodeConfig& c) { return blocks_decode_instance(linear, c); },
                                                 [&](const Fp4DecodeConfig& c) { return fp4_decode_instance(linear, c); },
                                                 [&](const BlocksWgmmaConfig& c) { return blocks_wgmma_instance(linear, c); },
                                                 [&](const BlocksMmaConfig& c) { return blocks_mma_instance(linear, c); }},
                                      plan.kernel);
  return text(plan.kernel) + "\n" + name;
}

std::string scaled_text(const LinearProblem& p, const Device& device) {
  const ScaledPlan plan = plan_scaled(p, device, true);
  const auto* const config = std::get_if<ScaledWgmmaConfig>(&plan.kernel);
  if (const auto weight_only_plan = weight_only(plan))
    return text(plan) + "\n" + instance(int4_linear(p, plan.scale), weight_only_plan->kernel);
  return text(plan) + "\n" + (config == nullptr ? "" : scaled_wgmma_instance(scaled_linear(p, plan.scale), *config));
}

// As scaled_mm_int4 of codes of int8, or of float8, for which the choice is the same where a kernel quantises.
std::string scaled_linear_int4_text(const LinearProblem& p, const Device& device) {
  LinearProblem product = p;
  product.input = ScalarType::Char;
  const ScaledPlan plan = plan_scaled(product, device, true);
  return text(plan) + " quantizes=" + std::to_string(quantizes(plan)) + "\n";
}

std::string tinygemm_text(const LinearProblem& p, const Device& device) {
  const TinygemmPlan plan = plan_tinygemm(p, device);
  const auto* const config = std::get_if<TinygemmConfig>(&plan.kernel);
  return text(plan) + "\n" + (config == nullptr ? "" : tinygemm_mm_instance(tinygemm_linear(p), *config));
}

using PlanText = std::string(const LinearProblem&, const Device&);

PlanText* plan_of(const std::string& op) {
  static const std::map<std::string, PlanText*> plans = {
      {"bf16i4bf16_rowwise", int4_text},
      {"bf16i4bf16_rowwise_bias", int4_text},
      {"bf16i4bf16_rowwise_grouped", grouped_int4_text},
      {"weight_int4pack_mm", tinygemm_text},
      {"int8_mm", rowwise_text},
      {"scaled_mm_rowwise", rowwise_text},
      {"bf16i8bf16_rowwise", rowwise_text},
      {"bf16f8bf16_rowwise", rowwise_text},
      {"scaled_linear_rowwise", scaled_linear_text},
      {"bf16i8bf16_blockwise", blocks_text},
      {"bf16f8bf16_blockwise", blocks_text},
      {"bf16lut4bf16_blockwise", blocks_text},
      {"scaled_mm_blockwise", scaled_text},
      {"scaled_mm_int4", scaled_text},
      {"scaled_linear_int4", scaled_linear_int4_text},
  };
  const auto found = plans.find(op);
  if (found == plans.end()) throw std::runtime_error("ao::_plan: operator must be one that chooses a kernel, got " + op);
  return found->second;
}

std::string plan(const std::string& gpu, const Call& call) { return plan_of(call.op)(call.problem, device_named(gpu)); }

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const Gpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

std::vector<Forceable> forceable_kernels() {
  std::vector<Forceable> all;
  const auto add = [&]<class Config>(const Config&) {
    Forceable kernel{Fields<Config>::kKernel, {}};
    for (const Field<Config>& field : Fields<Config>::kAll) kernel.fields.emplace_back(field.name);
    all.push_back(kernel);
  };
  const auto each = [&]<class... Configs>(const std::variant<Configs...>&) { (add(Configs{}), ...); };
  each(Int4Kernel()), each(GroupedInt4Kernel()), each(RowwiseKernel()), each(BlocksKernel()), each(ScaledKernel()),
      each(TinygemmKernel());
  return all;
}

// f(constant) of each in a table of fitted.h, as they are written.
template <class Part, class F>
void for_each_constant(Part& part, F&& f) {
  if constexpr (std::is_arithmetic_v<Part>)
    f(part);
  else if constexpr (std::is_array_v<Part>)
    for (auto& element : part) for_each_constant(element, f);
  else
    std::apply([&](auto&... parts) { (for_each_constant(parts, f), ...); }, part.constants());
}

// The GPU's table with these constants, all of them, in place of its own.
Fits fits_with(const Fits& own, const Tensor& constants) {
  Fits fits = own;
  int64_t count = 0;
  for_each_constant(fits, [&](double&) { ++count; });
  const bool fit = constants.is_cpu() && constants.is_contiguous() && constants.dim() == 1 && constants.numel() == count;
  if (!fit || constants.scalar_type() != ScalarType::Double)
    throw std::runtime_error("ao::_considered: constants must be float64 [" + std::to_string(count) + "] on the CPU");
  const auto* next = static_cast<const double*>(constants.data_ptr());
  for_each_constant(fits, [&](double& constant) { constant = *next++; });
  return fits;
}

// What the forced kernel would be chosen among: of each configuration the microseconds that its model says by these constants, or
// by the GPU's own where there are none, then its fields. One that is forced is not remembered.
Tensor considered_configs(const std::string& gpu, const std::string& op, const std::vector<OptionalTensor>& tensors,
                          const std::vector<int64_t>& numbers, std::optional<ScalarType> dtype, const Tensor& constants) {
  if (forced() == nullptr) throw std::runtime_error("ao::_considered: a kernel must be forced");
  Device device = device_named(gpu);
  const Fits fits = constants.numel() == 0 ? *device.fits : fits_with(*device.fits, constants);
  device.fits = &fits;
  std::vector<double> rows;
  considered = &rows;
  try {
    plan_of(op)(check_by_name(op, {tensors, numbers, dtype}), device);
  } catch (...) {
    considered = nullptr;
    throw;
  }
  considered = nullptr;
  const Tensor result = aten::empty({static_cast<int64_t>(rows.size())}, ScalarType::Double, constants);
  std::copy(rows.begin(), rows.end(), static_cast<double*>(result.data_ptr()));
  return result;
}

// Of all kernels that have more than one.
std::string kernel_instances() {
  return int4_ring_instances() + int4_decode_instances() + int4_batch_instances() + int4_wgmma_instances() +
         int4_grouped_ring_instances() + int4_grouped_wgmma_instances() + int4_mma_instances() + rowwise_decode_instances() +
         rowwise_wgmma_instances() + weight_only_wgmma_instances() + rowwise_mma_instances() + blocks_decode_instances() +
         fp4_decode_instances() + blocks_wgmma_instances() + blocks_mma_instances() + scaled_wgmma_instances() +
         tinygemm_mm_instances();
}

const bool added = add_plans({gpu_names, plan, forceable_kernels});

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_considered", AOEXT_BOX(&considered_configs));
  m.impl("_kernel_instances", AOEXT_BOX(&kernel_instances));
}

}  // namespace aoext::cuda
