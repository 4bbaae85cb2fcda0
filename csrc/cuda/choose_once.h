// Choosing takes longer than a launch, so every plan is made once.
#pragma once

#include <map>
#include <mutex>

#include "common/problem.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// There are too many counts of more rows of x to remember, and choosing is quick.
constexpr int64_t kRememberedRows = 512;

// All that a plan depends on. Devices stay where they are.
struct PlanKey {
  LinearProblem p;
  const Device* device;
  bool aligned;
  auto operator<=>(const PlanKey&) const = default;
};

// What `choose()` returned when it was first asked for this problem, device and alignment. Each caller has a memory of its own.
template <class Choose>
auto choose_once(const LinearProblem& p, const Device& device, bool aligned, Choose&& choose) {
  if (p.M > kRememberedRows) return choose();
  static std::mutex mutex;
  static std::map<PlanKey, decltype(choose())> chosen;
  const PlanKey key{p, &device, aligned};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = chosen.find(key);
  return found != chosen.end() ? found->second : chosen.emplace(key, choose()).first->second;
}

}  // namespace aoext::cuda
