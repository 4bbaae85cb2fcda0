// Choosing takes longer than a launch, so every plan is made once.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "common/problem.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// Of more rows of x there are too many counts to remember, and choosing is quick.
constexpr int64_t kRememberedRows = 512;

// All that a plan depends on. Devices stay where they are.
using PlanKey = std::array<int64_t, 16>;
inline PlanKey plan_key(const LinearProblem& p, const Device& device, bool aligned) {
  const auto number = [](auto value) { return static_cast<int64_t>(value); };
  return {p.M,
          p.N,
          p.K,
          p.experts,
          p.group_size,
          p.block_n,
          p.input_group_size,
          number(p.code),
          number(p.scale),
          number(p.input),
          number(p.output),
          p.has_bias ? number(p.bias) : -1,
          p.inner_k_tiles,
          p.has_global_scale,
          aligned,
          static_cast<int64_t>(reinterpret_cast<intptr_t>(&device))};
}

// What `choose()` returned when it was first asked for this problem, device and alignment. Each caller has a memory of its own.
template <class Choose>
auto choose_once(const LinearProblem& p, const Device& device, bool aligned, Choose&& choose) {
  if (p.M > kRememberedRows) return choose();
  static std::mutex mutex;
  static std::map<PlanKey, decltype(choose())> chosen;
  const PlanKey key = plan_key(p, device, aligned);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = chosen.find(key);
  return found != chosen.end() ? found->second : chosen.emplace(key, choose()).first->second;
}

}  // namespace aoext::cuda
