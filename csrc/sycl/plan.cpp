#include "sycl/plan.h"

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "sycl/operands.h"
#include "sycl/probes.h"
#include "sycl/self_check.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

// More rows of x have too many counts to remember, and such products take longer than choosing.
constexpr int64_t kRememberedRows = 512;

// Up to how many rows of x the kernel for every size is before a product of ATen's by a weight that is dequantised for it.
constexpr int64_t kMostAnyRows = 64;

bool plan_any(Plan& plan, const LinearProblem& p, Asked& asked) {
  if (p.K >= kMaxAnyDepth || !asked.serves({Source::linear_any})) return false;
  plan.algorithm = Algorithm::any;
  return true;
}

// A kernel, or several of one engine that differ by their tiles, that a product may get.
struct Candidate {
  Algorithm algorithm;
  Engine engine = Engine::lanes;  // tile
};

// Best first.
std::vector<Candidate> candidates(const LinearProblem& p, const Device& device) {
  std::vector<Candidate> all;
  if (p.experts == 0 && p.subtracts_zero_point && p.M > kMostAnyRows) return {{Algorithm::generic}};
  for (const Engine engine : {Engine::dpas, Engine::emulated, Engine::lanes}) all.push_back({Algorithm::tile, engine});
  const bool of_planes = tiles_of(p).source == Source::planes_tile;
  if (of_planes && p.M <= kAnyFirstOfPlanes) all.push_back({Algorithm::any});
  if (p.experts == 0 && has_product(p)) {  // of experts it would have the host wait for the offsets
    const bool matrix = device.engine != Engine::lanes && p.input != ScalarType::Float;
    const TilesFirst& first = of_planes ? kTilesFirstOfPlanes : kTilesFirst;
    const int64_t tiles_first = matrix ? first.matrix : device.gpu ? first.lanes_of_gpu : first.lanes_of_cpu;
    all.insert(p.M <= tiles_first ? all.end() : all.begin(), {Algorithm::onednn});
  }
  all.push_back({Algorithm::any});
  all.push_back({Algorithm::generic});
  return all;
}

std::string name(const Candidate& candidate, const LinearProblem& p) {
  switch (candidate.algorithm) {
    case Algorithm::generic: return "generic";
    case Algorithm::any: return "linear_any";
    case Algorithm::onednn: return "oneDNN";
    case Algorithm::tile: break;
  }
  return image(tiles_on(p, candidate.engine));
}

// Whether it serves; the plan is made then. f: what is forced of its fields.
bool serves(const Candidate& candidate, Plan& plan, const LinearProblem& p, Asked& asked, int alignment, const Forced* f) {
  switch (candidate.algorithm) {
    case Algorithm::generic: return true;
    case Algorithm::any: return plan_any(plan, p, asked);
    case Algorithm::onednn: return alignment % onednn::kAlignment == 0 && plan_product(plan, p, asked);
    case Algorithm::tile: break;
  }
  return alignment % kTileAlignment == 0 && plan_tile(plan, p, asked, candidate.engine, f);
}

// A forced kernel that is none of those that such a product chooses among leaves the choice as it is.
Plan plan_now(const LinearProblem& p, Asked& asked, int alignment) {
  Plan plan;
  const std::vector<Candidate> all = candidates(p, asked.device);
  if (const Forced* const f = forced()) {
    for (const Candidate& candidate : all) {
      if (name(candidate, p) != f->kernel) continue;
      if (!serves(candidate, plan, p, asked, alignment, f)) refuse_kernel(*f, text(p), asked.device.name);
      return plan;
    }
  }
  for (const Candidate& candidate : all)
    if (serves(candidate, plan, p, asked, alignment, nullptr)) break;
  return plan;
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
