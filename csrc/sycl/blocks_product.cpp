#include "sycl/blocks_product.h"

#include "common/dispatcher.h"
#include "sycl/arrange_input.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

const Tensor* pointer(const OptionalTensor& t) { return t ? &*t : nullptr; }

const void* data(const Tensor* t) { return t == nullptr ? nullptr : t->const_data_ptr(); }
const float* floats(const Tensor* t) { return static_cast<const float*>(data(t)); }

void tile(sycl::queue& queue, const LinearProblem& p, const Plan& plan, const Tensor& y, const BlocksOperands& o) {
  const Tensor x = arranged(p, plan, queue, o.x);
  launch(queue, plan.kernel, tile_range(plan, p), y.mutable_data_ptr(), x.const_data_ptr(), o.weight.const_data_ptr(),
         floats(o.table), o.scale.const_data_ptr(), floats(o.global_scale), floats(o.input_scale), data(o.bias), p.M, p.N,
         static_cast<int>(p.block_n), static_cast<int>(p.K), static_cast<int>(p.group_size),
         static_cast<int>(o.input_scale == nullptr ? p.K : p.input_group_size), int{element(p.output)}, int{element(p.scale)},
         int{element(p.bias)});
}

}  // namespace

OptionalTensor blocks_product(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                              const OptionalTensor& bias, const OptionalTensor& input_scale, const OptionalTensor& table,
                              const OptionalTensor& global_scale) {
  sycl::queue& queue = current_queue(input);
  const Tensor x = aten::contiguous(input), dense_weight = aten::contiguous(weight);
  const Plan plan = plan_blocks(p, queue, alignment_of({&x, &dense_weight}));
  if (plan.algorithm == Algorithm::generic) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor scales = aten::contiguous(scale);
  const OptionalTensor rows = contiguous(input_scale), values = contiguous(table), dense_bias = contiguous(bias);
  const BlocksOperands operands{
      x, dense_weight, scales, pointer(values), pointer(global_scale), pointer(rows), pointer(dense_bias)};
  if (plan.algorithm == Algorithm::tile) {
    tile(queue, p, plan, y, operands);
  } else {
    linear_any_blocks(queue, p, y, operands);
  }
  return y;
}

}  // namespace aoext::xpu
