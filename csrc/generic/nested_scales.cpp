#include "generic/nested_scales.h"

#include <vector>

#include "common/dispatcher.h"
#include "common/sizes.h"

namespace aoext::generic {
namespace {

Tensor by_aten(const LinearProblem& p, const Weight& w) {
  constexpr int64_t kTogether = NestedScales::kTogether;
  const int64_t experts = std::max<int64_t>(p.experts, 1), count = w.scale.numel() / experts;
  const Tensor codes = aten::to(aten::reshape(w.scale, {w.scale.numel()}), ScalarType::Int);
  const Tensor values =
      call("aten::index_select", "", aten::narrow(*w.table, 0, NestedScales::kValues, NestedScales::kCodes), int64_t{0}, codes);
  const Tensor factors = aten::reshape(*w.global_scale, {experts, w.global_scale->numel() / experts});
  const Tensor of_each = aten::narrow(aten::repeat_interleave(factors, kTogether, 1), 1, 0, count);
  const Tensor products = aten::mul(aten::reshape(values, {experts, count}), of_each);
  const Tensor scales = aten::add(products, aten::reshape(*w.zero_point, {experts, 1}));
  return aten::reshape(scales, w.scale.sizes());
}

}  // namespace

Tensor float_scales(const LinearProblem& p, const Weight& w) {
  const std::optional<Key> key = key_of(w.values);
  const FloatScales of_device = key ? float_scales_on[static_cast<int>(*key)] : nullptr;
  if (w.scale.numel() == 0) return aten::empty(w.scale.sizes(), ScalarType::Float, w.values);
  const OptionalTensor scales = of_device ? of_device(p, w) : std::nullopt;
  return scales ? *scales : by_aten(p, w);
}

}  // namespace aoext::generic
