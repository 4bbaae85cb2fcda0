// Plans from Python, on every device: what one would be given, and forcing one.
#include "generic/plans.h"

#include <algorithm>
#include <stdexcept>

#include "common/library.h"

namespace aoext {
namespace {

std::vector<DevicePlans>& all_plans() {
  static std::vector<DevicePlans> all;
  return all;
}

// Operands are taken to be aligned.
std::string plan(const std::string& device, const std::string& op, const std::vector<OptionalTensor>& tensors,
                 const Integers& numbers, std::optional<ScalarType> dtype) {
  const LinearProblem problem = check_by_name(op, {tensors, numbers, dtype});
  std::string names;
  for (const DevicePlans& plans : all_plans()) {
    for (const std::string& name : plans.devices()) {
      if (name == device) return knows(plans.key, problem.code) ? plans.text(device, {op, tensors, problem}) : "generic";
      names += (names.empty() ? "" : ", ") + name;
    }
  }
  throw std::runtime_error("aoext: device must be one of " + names + ", got " + device);
}

std::string force_plan(const std::string& plan) {
  std::vector<Forceable> kernels;
  for (const DevicePlans& plans : all_plans()) {
    const std::vector<Forceable> more = plans.kernels();
    kernels.insert(kernels.end(), more.begin(), more.end());
  }
  return force(plan, kernels);
}

}  // namespace

bool add_plans(const DevicePlans& plans) {
  all_plans().push_back(plans);
  return true;
}

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_plan", AOEXT_BOX(&plan));
  m.impl("_force_plan", AOEXT_BOX(&force_plan));
}

}  // namespace aoext
