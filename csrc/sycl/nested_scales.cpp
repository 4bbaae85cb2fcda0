// Nested scales as floats, on an XPU.
#include "generic/nested_scales.h"

#include <algorithm>

#include "common/sizes.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kMostWorkGroups = int64_t{1} << 16;  // each goes on with further ones

OptionalTensor float_scales(const LinearProblem& p, const Weight& w) {
  sycl::queue& queue = current_queue(w.values);
  if (!serves(queue, Source::dequantize_blocks)) return std::nullopt;
  static const Module& kernel = module("dequantize_blocks.lanes", "nested_scales");
  const Tensor out = aten::empty(w.scale.sizes(), ScalarType::Float, w.scale);
  constexpr size_t kWidth = kSubGroups * kLanes;
  const int64_t experts = std::max<int64_t>(p.experts, 1), count = w.scale.numel() / experts;
  const auto groups = static_cast<size_t>(std::min(ceil_div(w.scale.numel(), int64_t{kWidth}), kMostWorkGroups));
  const auto floats = [](const Tensor* t) { return static_cast<const float*>(t->const_data_ptr()); };
  launch(queue, kernel, sycl::nd_range<2>({1, groups * kWidth}, {1, kWidth}), static_cast<float*>(out.mutable_data_ptr()),
         static_cast<const uint8_t*>(w.scale.const_data_ptr()), floats(w.table) + NestedScales::kValues, floats(w.global_scale),
         floats(w.zero_point), experts, count, w.global_scale->numel() / experts);
  return out;
}

[[maybe_unused]] const auto own_scales = float_scales_on[static_cast<int>(Key::XPU)] = &float_scales;

}  // namespace
}  // namespace aoext::xpu
