#include "sycl/plan.h"

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "sycl/operands.h"
#include "sycl/probes.h"
#include "sycl/self_check.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

// More rows of x have too many counts to remember, and such products take longer than choosing.
constexpr int64_t kRememberedRows = 512;

bool plan_any(Plan& plan, const LinearProblem& p, Asked& asked) {
  if (p.K >= kMaxAnyDepth || !asked.serves({Source::linear_any})) return false;
  plan.algorithm = Algorithm::any;
  return true;
}

Plan choose(const LinearProblem& p, Asked& asked, int alignment) {
  const bool matrix = asked.device.engine != Engine::lanes && p.input != ScalarType::Float;
  Plan plan;
  const auto try_tile = [&] {
    return alignment % kTileAlignment == 0 &&
           ((matrix && plan_tile(plan, p, asked, asked.device.engine)) || plan_tile(plan, p, asked, Engine::lanes));
  };
  const auto try_product = [&] { return alignment % onednn::kAlignment == 0 && plan_product(plan, p, asked); };
  const int64_t tiles_first = matrix             ? kTilesFirst.matrix
                              : asked.device.gpu ? kTilesFirst.lanes_of_gpu
                                                 : kTilesFirst.lanes_of_cpu;
  const bool found = p.M <= tiles_first ? try_tile() || try_product() : try_product() || try_tile();
  if (!found) plan_any(plan, p, asked);
  return plan;
}

// Nothing where the forced kernel is none of those that such a product chooses among.
std::optional<Plan> forced_plan(const Forced& f, const LinearProblem& p, Asked& asked, int alignment) {
  Plan plan;
  const auto taken = [&](bool takes) {
    if (!takes) refuse_kernel(f, text(p), asked.device.name);
    return plan;
  };
  if (f.kernel == "generic") return plan;
  if (f.kernel == "linear_any") return taken(plan_any(plan, p, asked));
  if (f.kernel == "oneDNN")
    return has_product(p) ? std::optional(taken(alignment % onednn::kAlignment == 0 && plan_product(plan, p, asked)))
                          : std::nullopt;
  for (const Engine engine : {Engine::lanes, Engine::dpas, Engine::emulated})
    if (image({tiles_of(p).source, engine, p.code, p.input}) == f.kernel)
      return taken(alignment % kTileAlignment == 0 && plan_tile(plan, p, asked, engine, &f));
  return std::nullopt;
}

Plan plan_now(const LinearProblem& p, Asked& asked, int alignment) {
  if (p.subtracts_zero_point || p.experts > 0) return {};
  if (const Forced* const f = forced())
    if (const std::optional<Plan> plan = forced_plan(*f, p, asked, alignment)) return *plan;
  return choose(p, asked, alignment);
}

}  // namespace

bool Asked::serves(const Family& family) {
  if (!runs(device, family.engine)) return false;
  if (queue == nullptr) return true;
  const Trust trust = trusted(*queue, family);
  is_final &= trust != Trust::unknown;
  return trust == Trust::yes;
}

bool serves(sycl::queue& queue, Source source) {
  return runs(device_of(queue), Engine::lanes) && trusted(queue, {source}) == Trust::yes;
}

int alignment_of(std::initializer_list<const Tensor*> tensors) {
  int alignment = onednn::kAlignment;
  for (const Tensor* t : tensors)
    while (!is_aligned(*t, alignment)) alignment /= 2;
  return alignment;
}

Plan plan_linear(const LinearProblem& p, Asked& asked, int alignment) { return plan_now(p, asked, alignment); }

Plan plan_linear(const LinearProblem& p, sycl::queue& queue, int alignment) {
  const Device& device = device_of(queue);
  Asked asked{device, &queue};
  if (p.M > kRememberedRows || forced() != nullptr || is_probing()) return plan_now(p, asked, alignment);
  static std::mutex mutex;
  static std::map<std::tuple<LinearProblem, const Device*, int>, Plan> chosen;
  const std::tuple key(p, &device, alignment);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = chosen.find(key); found != chosen.end()) return found->second;
  }
  const Plan plan = plan_now(p, asked, alignment);  // unlocked: a check of kernels makes plans of its own
  if (asked.is_final) {
    const std::lock_guard lock(mutex);
    chosen.emplace(key, plan);
  }
  return plan;
}

std::string text(const Plan& plan) {
  switch (plan.algorithm) {
    case Algorithm::any: return "linear_any";
    case Algorithm::onednn: return "oneDNN";
    case Algorithm::generic: return "generic";
    case Algorithm::tile: break;
  }
  const Family& tile = plan.family;
  return image(tile) + " rows=" + std::to_string(tile.rows) + (tile.group == 0 ? "" : " group=" + std::to_string(tile.group)) +
         " sub_groups=" + std::to_string(plan.sub_groups);
}

Explanation explain(const Plan& plan, sycl::queue& queue) {
  switch (plan.algorithm) {
    case Algorithm::generic: break;
    case Algorithm::any: return {"xpu", "linear_any"};
    case Algorithm::onednn:
      return Explanation{"xpu", "oneDNN"}.with("implementation", onednn::implementation(queue, plan.product));
    case Algorithm::tile:
      Explanation tile{"xpu", image(plan.family)};
      tile.with("rows", plan.family.rows);
      if (plan.family.group != 0) tile.with("group", plan.family.group);
      return tile.with("sub_groups", plan.sub_groups);
  }
  return generic_explanation();
}

}  // namespace aoext::xpu
