// Nested scales as floats, on CUDA.
#include "generic/nested_scales.h"

#include <algorithm>

#include "cuda/kernels/nested_scales.h"
#include "cuda/operands.h"

namespace aoext::cuda {
namespace {

OptionalTensor float_scales(const LinearProblem& p, const Weight& w) {
  if (!device_of(w.values).has_kernels) return std::nullopt;
  const Launch launch(w.values);
  const Tensor out = aten::empty(w.scale.sizes(), ScalarType::Float, w.scale);
  const int64_t experts = std::max<int64_t>(p.experts, 1);
  const auto floats = [](const Tensor* t) { return static_cast<const float*>(t->const_data_ptr()); };
  const NestedScales raw{static_cast<const uint8_t*>(w.scale.const_data_ptr()),
                         floats(w.table) + aoext::NestedScales::kValues,
                         floats(w.global_scale),
                         floats(w.zero_point),
                         static_cast<float*>(out.mutable_data_ptr()),
                         experts,
                         w.scale.numel() / experts,
                         w.global_scale->numel() / experts};
  check(launch_nested_scales(raw, launch.stream()), "nested_scales");
  return out;
}

[[maybe_unused]] const auto own_scales = float_scales_on[static_cast<int>(Key::CUDA)] = &float_scales;

}  // namespace
}  // namespace aoext::cuda
