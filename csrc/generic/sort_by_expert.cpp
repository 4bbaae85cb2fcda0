// Pairs of token and expert in the order of experts, on any device.
#include "common/dispatcher.h"
#include "generic/generic.h"

namespace aoext::generic {

Triple sort_by_expert(const Tensor& expert, int64_t experts) {
  const LinearProblem p = check_sort_by_expert(expert, experts);
  const Tensor flat = aten::reshape(expert, {p.M});
  const auto constant = [&](int64_t value) { return aten::scalar_like(static_cast<double>(value), p.input, expert); };
  // Whoever has no expert comes behind the last.
  const Tensor none = constant(experts);
  const Tensor negative = call("aten::lt", "Tensor", flat, constant(0)), beyond = call("aten::gt", "Tensor", flat, none);
  const Tensor keys = aten::where(call("aten::logical_or", "", negative, beyond), none, flat);
  const auto [sorted, order] = call_all<2>("aten::sort", "stable", keys, std::optional(true), int64_t{0}, false);
  const Tensor ones = torch::stable::full({experts}, 1, p.input, std::nullopt, expert.device());
  const Tensor behind = call("aten::cumsum", "", ones, int64_t{0}, std::optional(p.input));  // 1, 2, ..., experts
  const Tensor offsets =
      call("aten::searchsorted", "Tensor", sorted, behind, true, false, std::nullopt, std::nullopt);  // int32, from the left
  const auto [positions, place] = call_all<2>("aten::sort", "stable", order, std::optional(true), int64_t{0}, false);
  return {order, place, offsets};
}

}  // namespace aoext::generic
