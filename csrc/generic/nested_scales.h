// Nested scales (common/formats.h) become floats before a product or a dequantisation has them.
#pragma once

#include "common/dispatcher.h"
#include "generic/register.h"

namespace aoext::generic {

// They as float32, of their shape, in memory of their own.
Tensor float_scales(const LinearProblem& p, const Weight& w);

// A weight as kernels take it, which lives as long as this.
class WithFloatScales {
 public:
  WithFloatScales(const LinearProblem& p, const Weight& w)
      : floats_(p.has_nested_scale ? OptionalTensor(float_scales(p, w)) : std::nullopt),
        table_(floats_ ? OptionalTensor(aten::narrow(*w.table, 0, 0, NestedScales::kValues)) : std::nullopt),
        weight(floats_ ? Weight{w.values, *floats_, nullptr, &*table_} : w) {}
  WithFloatScales(const WithFloatScales&) = delete;

 private:
  const OptionalTensor floats_, table_;

 public:
  const Weight weight;
};

}  // namespace aoext::generic
