// Dynamic quantisation by blocks on an XPU.
#include <algorithm>
#include <limits>

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "generic/register.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/quantize_rowwise.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

bool quantize_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && serves(queue, kQuantizeImage);
}

Explanation explain_quantize(const Call& call) {
  return quantize_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", call.op} : generic_explanation();
}

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  const LinearProblem p = check_quantize_blockwise(input, dtype, block_size, power_of_two);
  sycl::queue& queue = current_queue(input);
  if (!quantize_serves(queue, p)) return generic::quantize_blockwise(input, dtype, block_size, power_of_two);
  const int64_t blocks = ceil_div(p.K, p.input_group_size);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, blocks), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);
  constexpr size_t kWidth = kSubGroups * kLanes;
  const auto work_groups = static_cast<size_t>(std::min(ceil_div(p.M * blocks, kSubGroups), kMaxWorkGroups));
  launch(queue, {kQuantizeImage, "quantize_blockwise"}, sycl::nd_range<2>({1, work_groups * kWidth}, {1, kWidth}),
         values.mutable_data_ptr(), static_cast<float*>(scales.mutable_data_ptr()), x.const_data_ptr(), p.M,
         static_cast<int>(p.K), static_cast<int>(p.input_group_size), int{element(p.input)}, int{element(p.output)},
         static_cast<int>(p.power_of_two));
  return {values, scales};
}

}  // namespace

AOEXT_REGISTER(XPU, quantize_blockwise, &explain_quantize, &quantize_blockwise)

}  // namespace aoext::xpu
