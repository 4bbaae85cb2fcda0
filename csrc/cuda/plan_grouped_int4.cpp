#include "cuda/plan_grouped_int4.h"

#include "cuda/choose_once.h"
#include "cuda/forced.h"

namespace aoext::cuda {
namespace {

// What wgmma takes of a problem.
struct Regular {
  GroupedInt4Linear raw;
  ScalarType scale;  // of the input's type or float32
  bool serves;

  Regular(const LinearProblem& p, const Device& device, bool aligned)
      : raw(grouped_int4_linear(p)), scale(p.scale == p.output ? p.scale : ScalarType::Float) {
    raw.scale_type = element(scale);
    serves = aligned && device.is_hopper() && p.M > 0 && p.N > 0 && int4_grouped_wgmma_takes(raw);
  }
};

GroupedInt4Plan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const Regular regular(p, device, aligned);
  if (regular.serves) return {choose_int4_grouped_wgmma(regular.raw, device), regular.scale};
  return {GroupedInt4Any{}, p.scale};
}

GroupedInt4Plan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  if (f.is<Generic>()) return {};
  const Regular regular(p, device, aligned);
  if (f.is<GroupedWgmmaConfig>()) {
    const auto choose = [&] { return choose_int4_grouped_wgmma(regular.raw, device); };
    const auto fits = [&](const GroupedWgmmaConfig& c) { return int4_grouped_wgmma_fits(regular.raw, c); };
    return {forced_config<GroupedWgmmaConfig>(f, text(p), device, regular.serves, choose, fits), regular.scale};
  }
  if (!takes_one_pass(p.K, device)) refuse_kernel(f, text(p), device);
  return {GroupedInt4Any{}, p.scale};
}

}  // namespace

GroupedInt4Linear grouped_int4_linear(const LinearProblem& p) {
  GroupedInt4Linear raw{int4_linear(p)};
  raw.experts = p.experts;
  return raw;
}

GroupedInt4Plan plan_grouped_int4(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, GroupedInt4Kernel())) return forced_plan(*f, p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

std::string text(const GroupedInt4Plan& plan) {
  return text(plan.kernel) + " | scale=" + torch::headeronly::toString(plan.scale);
}

Explanation explain(const GroupedInt4Plan& plan) {
  return std::visit(Overloaded{[](const Generic&) { return generic_explanation(); },
                               [](const GroupedInt4Any&) { return explain_kernel("int4_grouped_any"); },
                               [](const GroupedWgmmaConfig& c) {
                                 return explain_kernel("int4_grouped_wgmma").with("tile_n", c.block_n).with("tile_m", c.block_m);
                               }},
                    plan.kernel);
}

}  // namespace aoext::cuda
