// What XPUs tell of their plans (generic/plans.h).
#include <stdexcept>

#include "common/library.h"
#include "generic/plans.h"
#include "sycl/gpus.h"
#include "sycl/plan.h"
#include "sycl/tiles.h"

namespace aoext::xpu {

std::string int4pack_text(const LinearProblem& p, const Device& device);  // weight_int4pack_mm.cpp

namespace {

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const Gpu& gpu : kGpus) names.emplace_back(gpu.name);
  return names;
}

std::string plan_text(const std::string& name, const Call& call) {
  const Gpu* gpu = kGpus;
  while (gpu->name != name) ++gpu;
  const Device device = device_like(*gpu);
  LinearProblem p = call.problem;
  if (p.inner_k_tiles > 0) return int4pack_text(p, device);
  if (p.M * p.N == 0 && (p.M == 0) != (p.N == 0))
    throw std::runtime_error("ao::_plan: operator must be one that chooses a kernel, got " + call.op);
  const bool quantizes = p.quantized != ScalarType{} && p.input != p.quantized;
  if (quantizes) p.input = p.quantized;
  Asked asked{device, nullptr};
  return text(plan_linear(p, asked, onednn::kAlignment));
}

std::vector<Forceable> forceable_kernels() {
  std::vector<Forceable> all{{"generic", {}}, {"linear_any", {}}, {"oneDNN", {}}, {"int4pack_mm", {"rows", "sub_groups"}}};
  for (const Module& module : modules()) {
    const std::string image = module.image;
    if (image.find("_tile.") == std::string::npos || image == all.back().kernel) continue;
    all.push_back({image, {"rows", "group", "sub_groups"}});
  }
  return all;
}

std::string kernels() {
  std::string lines;
  for (const Module& module : modules()) lines += module.name() + (is_built(module) ? " built\n" : "\n");
  return lines;
}

const bool added = add_plans({Key::XPU, gpu_names, plan_text, forceable_kernels});

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) { m.impl("_xpu_kernels", AOEXT_BOX(&kernels)); }

}  // namespace aoext::xpu
