#include "cuda/scaled.h"

#include "cuda/kernels/widen.h"

namespace aoext::cuda {
namespace {

// Codes as numbers of the result's 16 bits, unless they are that.
Tensor widened(const LinearProblem& p, const Tensor& x, cudaStream_t stream) {
  if (x.scalar_type() == p.output) return x;
  const Tensor wide = aten::empty({p.M, p.K}, p.output, x);
  check(launch_widen({x.const_data_ptr(), wide.mutable_data_ptr(), p.M * p.K, element(p.input), element(p.output)}, stream),
        "scaled");
  return wide;
}

// By a kernel of weight-only int4.
void launch_weight_only(const LinearProblem& p, const Int4Kernels& kernel, const ScaledLinear& raw, const Tensor& x,
                        const Tensor& y, cudaStream_t stream) {
  Int4Linear product = int4_linear(p);
  product.quantizes = raw.x_scale == nullptr;
  if (product.quantizes || reads_codes(kernel, p.M)) product.code = element(p.input);
  const Tensor as_read = product.code == product.type ? widened(p, x, stream) : x;
  product.x = as_read.const_data_ptr();
  product.weight = static_cast<const uint8_t*>(raw.weight);
  product.scale = raw.scale, product.zero_point = raw.zero, product.scale_type = raw.scale_type;
  product.bias = raw.bias, product.row_scale = raw.x_scale, product.y = raw.y;
  product.ends = raw.ends;
  launch_planned("scaled", kernel, product, y, stream);
}

}  // namespace

RowsForm form_of(const ScaledPlan& plan, const LinearProblem& p) {
  if (const Int4Kernels* const kernel = plan.weight_only()) return {.wide = !reads_codes(*kernel, p.M)};
  if (plan.wgmma() != nullptr) return {.sums = scaled_sums(scaled_linear(p, plan.scale))};
  return {};
}

int64_t scale_pitch_of(const ScaledPlan& plan, const LinearProblem& p) {
  return plan.wgmma() == nullptr ? 0 : scaled_wgmma_pitch(scaled_linear(p, plan.scale), *plan.wgmma());
}

Tensor scaled_by(const ScaledPlan& plan, const LinearProblem& p, const Operands& of, const QuantizedForm& form) {
  const Launch launch(of.input);
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(of.input);
  // Exponents in uint8 are no other type than those that the plan has.
  const auto converted_scale = [&](const Tensor& t) { return p.scale == plan.scale ? t : aten::to(t, plan.scale); };
  const Tensor scale = converted_scale(of.weight.scale);
  const OptionalTensor x_scale = dense(of.input_scale), bias = dense(of.bias);
  OptionalTensor zero_point;
  if (of.weight.zero_point != nullptr)
    zero_point = p.subtracts_zero_point ? *of.weight.zero_point : converted_scale(*of.weight.zero_point);

  ScaledLinear raw = scaled_linear(p, plan.scale);
  raw.x = x.const_data_ptr(), raw.weight = of.weight.values.const_data_ptr();
  raw.x_scale = static_cast<const float*>(data_of(x_scale)), raw.x_scale_pitch = form.scale_pitch;
  raw.scale = scale.const_data_ptr(), raw.zero = data_of(zero_point), raw.bias = data_of(bias), raw.ends = ends_of(of);
  raw.y = y.mutable_data_ptr();
  if (const Int4Kernels* const kernel = plan.weight_only()) {
    launch_weight_only(p, *kernel, raw, x, y, launch.stream());
    return y;
  }
  if (plan.wgmma() != nullptr && form.sums) raw.sums = scaled_sums(raw), raw.sums.sums = data_of(form.sums);
  launch_planned("scaled", std::get<ScaledKernels>(plan.kernel), raw, y, launch.stream());
  return y;
}

}  // namespace aoext::cuda
