// What GPUs tell of their plans (generic/plans.h), and what a plan is chosen among.
#include "cuda/plans.h"

#include <algorithm>
#include <type_traits>

#include "common/by_name.h"
#include "common/dispatcher.h"
#include "common/library.h"
#include "cuda/fits.h"
#include "cuda/gpus.h"
#include "cuda/kernels/choice.h"
#include "generic/plans.h"

namespace aoext::cuda {
namespace {

// A line for the plan, and one for the instance of the kernel's template that it launches. Operands are taken to be aligned.
std::string text_of(const Call& call, const Device& device) {
  const LinearProblem& p = call.problem;
  const auto begins = [&](const char* name) { return call.op.rfind(name, 0) == 0; };
  const auto both = [&](const auto& plan) { return text(plan) + "\n" + instance(plan, p); };
  if (begins("weight_only_linear") || begins("bf16")) return with_weight_only_plan(p, device, true, both);
  if (begins("scaled_mm")) return with_scaled_plan(p, device, true, both);
  if (begins("scaled_linear"))
    return with_scaled_linear_plan(p, device, true, [](const auto& plan, const LinearProblem& product, bool quantizes) {
      return text(plan) + " quantizes=" + std::to_string(quantizes) + "\n" + instance(plan, product);
    });
  if (begins("int8_mm")) return both(plan_rowwise(p, device, true));
  if (begins("weight_int4pack_mm")) return both(plan_tinygemm(p, device));
  throw std::runtime_error("ao::_plan: operator must be one that chooses a kernel, got " + call.op);
}

std::string plan(const std::string& gpu, const Call& call) { return text_of(call, device_named(gpu)); }

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const Gpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

std::vector<Forceable> forceable_kernels() {
  std::vector<Forceable> all;
  for_each_kernel([&]<class Config>(const Config&) {
    Forceable kernel{KernelOf<Config>::kName, {}};
    for (const Field<Config>& field : KernelOf<Config>::kFields) kernel.fields.emplace_back(field.name);
    all.push_back(kernel);
  });
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
    text_of({op, tensors, check_by_name(op, {tensors, numbers, dtype})}, device);
  } catch (...) {
    considered = nullptr;
    throw;
  }
  considered = nullptr;
  const Tensor result = aten::empty({static_cast<int64_t>(rows.size())}, ScalarType::Double, constants);
  std::copy(rows.begin(), rows.end(), static_cast<double*>(result.data_ptr()));
  return result;
}

// A line each (kernels/instances.h).
std::string kernel_instances() {
  std::string all;
  for_each_kernel([&]<class Config>(const Config&) { all += KernelOf<Config>::instances(); });
  return all;
}

const bool added = add_plans({Key::CUDA, gpu_names, plan, forceable_kernels});

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_considered", AOEXT_BOX(&considered_configs));
  m.impl("_kernel_instances", AOEXT_BOX(&kernel_instances));
}

}  // namespace aoext::cuda
