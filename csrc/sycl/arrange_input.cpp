#include "sycl/arrange_input.h"

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "sycl/operands.h"
#include "sycl/tiles.h"

namespace aoext::xpu {

Tensor arranged(const LinearProblem& p, const Plan& plan, sycl::queue& queue, const Tensor& x, const OptionalTensor& offsets) {
  if (!plan.arranged) return x;
  constexpr size_t kWidth = 8 * kLanes;
  const int64_t rows = row_tiles(p, plan.family.rows) * plan.family.rows;
  const Tensor result = aten::empty({rows, p.K}, p.input, x);
  const auto lanes = static_cast<size_t>(p.K / kStep * kLanes);
  static const Module& kernel = module("arrange_input.lanes", "arrange_input");
  launch(queue, kernel,
         sycl::nd_range<2>({static_cast<size_t>(rows / kArrangedBlock), ceil_div(lanes, kWidth) * kWidth}, {1, kWidth}),
         result.mutable_data_ptr(), x.const_data_ptr(), ints_of(offsets), static_cast<int>(p.experts), p.M, static_cast<int>(p.K),
         plan.family.rows);
  return result;
}

}  // namespace aoext::xpu
