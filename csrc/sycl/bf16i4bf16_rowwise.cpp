// Weight-only int4 on an XPU.
#include "common/dispatcher.h"
#include "common/sizes.h"
#include "generic/int4_rowwise.h"
#include "generic/register.h"
#include "sycl/arrange_input.h"
#include "sycl/int4_correction.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

using generic::Int4Weight;

void tile(const LinearProblem& p, const Plan& plan, sycl::queue& queue, const Tensor& y, const Tensor& input, const Int4Weight& w,
          const OptionalTensor& bias) {
  const Tensor x = arranged(p, plan, queue, input);
  launch(queue, plan.kernel, tile_range(plan, p), y.mutable_data_ptr(), x.const_data_ptr(), w.weight.const_data_ptr(),
         w.scale.const_data_ptr(), w.zero_point.const_data_ptr(), data_of(bias), p.M, p.N, static_cast<int>(p.K),
         static_cast<int>(p.group_size), int{element(p.output)}, int{element(p.scale)}, int{element(p.bias)});
}

// oneDNN knows integer zero points alone. w = q · s + z is (q − zp) · s + r with the integer zp next to −z / s and
// the rest r = z + zp · s, at most half a scale. oneDNN multiplies by the first; the second, times the sums of x
// over each group, is a small float32 product that is added before the one rounding. (With zp = 0 it would be as
// exact in sum, but oneDNN rounds (q − zp) · s to the input's type, and where it cancels against z an outlier in x
// shows the difference.)
void product(const LinearProblem& p, const Plan& plan, sycl::queue& queue, const Tensor& y, const Tensor& x, const Int4Weight& w,
             const OptionalTensor& bias) {
  const int64_t groups = p.K / p.group_size;
  const Int4Zeros zeros = split_zeros(queue, p, w.scale, w.zero_point);
  const Tensor sums = group_sums(queue, p, x);
  const Tensor correction = aten::empty({p.M, p.N}, ScalarType::Float, y);

  onednn::Matmul add;
  add.M = p.M, add.N = p.N, add.K = groups;
  add.input = add.weight = add.output = onednn::Type::f32;
  add.weight_is_kn = true;
  onednn::Arguments arguments;
  arguments.input = sums.const_data_ptr();
  arguments.weight = zeros.rest.const_data_ptr();
  arguments.output = correction.mutable_data_ptr();
  multiply(queue, add, arguments, y);

  arguments = {};
  arguments.input = x.const_data_ptr();
  arguments.weight = w.weight.const_data_ptr();
  arguments.scale = (plan.product.scale == onednn_type(p.scale) ? w.scale : zeros.scale).const_data_ptr();
  arguments.zero_point = zeros.integers.const_data_ptr();
  arguments.addend = correction.const_data_ptr();
  arguments.bias = data_of(bias);
  arguments.output = y.mutable_data_ptr();
  multiply(queue, plan.product, arguments, y);
}

// Null where no kernel of this folder serves.
OptionalTensor linear(const LinearProblem& p, const Tensor& input, const Int4Weight& w, const OptionalTensor& bias) {
  const Tensor x = aten::contiguous(input);
  const OptionalTensor dense_bias = bias ? OptionalTensor(aten::contiguous(*bias)) : std::nullopt;
  sycl::queue& queue = current_queue(input);
  const Plan plan = plan_int4(p, queue, alignment_of({&x, &w.weight}));
  if (plan.algorithm == Algorithm::generic) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  switch (plan.algorithm) {
    case Algorithm::tile: tile(p, plan, queue, y, x, w, dense_bias); break;
    case Algorithm::onednn: product(p, plan, queue, y, x, w, dense_bias); break;
    default: linear_any(queue, p, y, x, w.weight, &w.scale, &w.zero_point, nullptr, dense_bias);
  }
  return y;
}

}  // namespace

AOEXT_REGISTER(XPU, bf16i4bf16_rowwise, &explain<plan_int4>, &generic::int4_rowwise<linear>)
AOEXT_REGISTER(XPU, bf16i4bf16_rowwise_bias, &explain<plan_int4>, &generic::int4_rowwise_bias<linear>)

}  // namespace aoext::xpu
