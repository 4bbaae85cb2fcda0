// Nested scales as floats, as many blocks of them to a thread as take it a while.
#include "generic/nested_scales.h"

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kTogether = NestedScales::kTogether;
constexpr int64_t kGrain = 64;  // blocks, some microseconds of work

OptionalTensor float_scales(const LinearProblem& p, const Weight& w) {
  const Tensor out = aten::empty(w.scale.sizes(), ScalarType::Float, w.scale);
  const auto* const codes = static_cast<const uint8_t*>(w.scale.const_data_ptr());
  const auto *const table = static_cast<const float*>(w.table->const_data_ptr()) + NestedScales::kValues,
                    *const factors = static_cast<const float*>(w.global_scale->const_data_ptr()),
                    *const offsets = static_cast<const float*>(w.zero_point->const_data_ptr());
  auto* const floats = static_cast<float*>(out.mutable_data_ptr());
  const int64_t experts = std::max<int64_t>(p.experts, 1), count = w.scale.numel() / experts,
                stride = w.global_scale->numel() / experts, blocks = ceil_div(count, kTogether);
  kParallelFor(experts * blocks, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t expert = i / blocks, block = i % blocks, at = expert * count + block * kTogether;
      kernels().float_scales(codes + at, table, factors[expert * stride + block], offsets[expert],
                             std::min(kTogether, count - block * kTogether), floats + at);
    }
  });
  return out;
}

[[maybe_unused]] const auto own_scales = float_scales_on[static_cast<int>(Key::CPU)] = &float_scales;

}  // namespace
}  // namespace aoext::cpu
