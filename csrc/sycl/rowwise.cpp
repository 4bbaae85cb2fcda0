#include "sycl/rowwise.h"

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

using generic::RowwiseOperands;

// What the kernels read: dense, and null where there is none.
struct Dense {
  Tensor x;
  OptionalTensor row_scale, bias;
  const Tensor* scale;

  const float* row_scales() const { return static_cast<const float*>(data_of(row_scale)); }
  const void* scales() const { return scale == nullptr ? nullptr : scale->const_data_ptr(); }
};

Dense dense(const RowwiseOperands& operands) {
  const auto contiguous = [](const Tensor* t) { return t == nullptr ? std::nullopt : OptionalTensor(aten::contiguous(*t)); };
  return {aten::contiguous(operands.input), contiguous(operands.input_scale),
          contiguous(operands.bias ? &*operands.bias : nullptr), operands.weight_scale};
}

void tile(sycl::queue& queue, const LinearProblem& p, const Plan& plan, const Tensor& y, const Tensor& weight, const Dense& d) {
  launch(queue, plan.kernel, tile_range(plan, p), y.mutable_data_ptr(), d.x.const_data_ptr(), weight.const_data_ptr(),
         d.row_scales(), d.scales(), data_of(d.bias), p.M, p.N, static_cast<int>(p.K), int{element(p.output)},
         int{element(p.scale)}, int{element(p.bias)});
}

// Scales and bias where the product has left them out.
void scale_rows(sycl::queue& queue, const LinearProblem& p, const Tensor& y, const Tensor& sums, const Dense& d) {
  constexpr int64_t kWorkGroup = 256, kValues = 4;  // of a work-item, in wide rows
  const auto groups = static_cast<size_t>(ceil_div(p.N, kWorkGroup * kValues));
  launch(queue, {"scale_rows.lanes", "scale_rows"},
         sycl::nd_range<2>({static_cast<size_t>(p.M), groups * kWorkGroup}, {1, kWorkGroup}), y.mutable_data_ptr(),
         static_cast<const int*>(sums.const_data_ptr()), d.row_scales(), d.scales(), data_of(d.bias), p.N, int{element(p.output)},
         int{element(p.scale)}, int{element(p.bias)});
}

void product(sycl::queue& queue, const LinearProblem& p, const Plan& plan, const Tensor& y, const Tensor& weight,
             const Dense& d) {
  const bool unscaled = plan.product.output == onednn::Type::s32 && p.output != ScalarType::Int;
  const Tensor result = unscaled ? aten::empty({p.M, p.N}, ScalarType::Int, y) : y;
  OptionalTensor scale;  // kept until the product is submitted
  if (plan.product.scale != onednn::Type::none)
    scale = plan.product.scale == onednn_type(p.scale) ? *d.scale : aten::to(*d.scale, ScalarType::Float);
  onednn::Arguments arguments;
  arguments.input = d.x.const_data_ptr();
  arguments.weight = weight.const_data_ptr();
  arguments.scale = data_of(scale);
  if (plan.product.row_scales) arguments.row_scale = d.row_scales();
  if (plan.product.bias != onednn::Type::none) arguments.bias = data_of(d.bias);
  arguments.output = result.mutable_data_ptr();
  multiply(queue, plan.product, arguments, y);
  if (unscaled) scale_rows(queue, p, y, result, d);
}

}  // namespace

OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands) {
  const Dense d = dense(operands);
  sycl::queue& queue = current_queue(operands.input);
  const Plan plan = plan_rowwise(p, queue, alignment_of({&d.x, &operands.weight}));
  if (plan.algorithm == Algorithm::generic) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(operands.input, p.N), p.output, operands.input);
  if (p.M == 0 || p.N == 0) return y;
  switch (plan.algorithm) {
    case Algorithm::tile: tile(queue, p, plan, y, operands.weight, d); break;
    case Algorithm::onednn: product(queue, p, plan, y, operands.weight, d); break;
    default: linear_any(queue, p, y, d.x, operands.weight, d.scale, nullptr, d.row_scale ? &*d.row_scale : nullptr, d.bias);
  }
  return y;
}

}  // namespace aoext::xpu
