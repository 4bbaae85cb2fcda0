#include "cuda/packed.h"

#include "cuda/kernels/limbs.h"
#include "cuda/kernels/packed_dequantize.h"

namespace aoext::cuda {
namespace {

void set_weight(PackedLinear& raw, const Weight& w, const Tensor& values) {
  raw.weight = static_cast<const uint8_t*>(values.const_data_ptr());
  raw.scale = w.scale.const_data_ptr();
  if (w.zero_point != nullptr) raw.zero = w.zero_point->const_data_ptr();
}

Tensor by_cublas(const LinearProblem& p, const Operands& of) {
  const Tensor x = aten::reshape(of.input, {p.M, p.K}), w = packed_dequantized(p, of.weight);
  const bool adds = of.bias != nullptr && p.bias == p.output;
  Tensor y = aten::linear(x, w, adds ? OptionalTensor(*of.bias) : std::nullopt);
  if (of.bias != nullptr && !adds) y = aten::to(aten::add(y, aten::to(*of.bias, ScalarType::Float)), p.output);
  return aten::reshape(y, output_sizes(of.input, p.N));
}

// The input as so many limbs; a scale of its rows is left to the kernel.
Tensor limbs_of(const LinearProblem& p, const Tensor& x, const OptionalTensor& scale, int count, cudaStream_t stream) {
  const Tensor limbs = aten::empty({p.M, count, p.K}, ScalarType::BFloat16, x);
  const bool by_rows = p.input_group_size == p.K;
  check(launch_limbs({x.const_data_ptr(), by_rows ? nullptr : static_cast<const float*>(data_of(scale)), limbs.mutable_data_ptr(),
                      p.M, p.K, p.input_group_size, element(p.input), count},
                     stream),
        "packed");
  return limbs;
}

}  // namespace

OptionalTensor packed(const LinearProblem& p, const Operands& of) {
  const PackedPlan plan = plan_packed(p, device_of(of.input), is_aligned(of.weight));
  if (is_generic(plan.kernel)) return std::nullopt;
  if (std::holds_alternative<PackedDequantize>(plan.kernel)) return by_cublas(p, of);
  const Launch launch(of.input);
  const Tensor y = aten::empty(output_sizes(of.input, p.N), p.output, of.input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aligned(of.input);
  const OptionalTensor x_scale = dense(of.input_scale), bias = dense(of.bias);

  const bool splits = !std::holds_alternative<PackedAny>(plan.kernel) && (plan.limbs > 1 || of.input_scale != nullptr);
  PackedLinear raw = splits ? packed_linear(p, plan.limbs) : packed_linear(p);
  const Tensor as_read = splits ? limbs_of(p, x, x_scale, plan.limbs, launch.stream()) : x;
  raw.x = as_read.const_data_ptr();
  const auto* const scales = static_cast<const float*>(data_of(x_scale));
  if (p.input_group_size == p.K)
    raw.row_scale = scales;
  else if (!splits)
    raw.x_scale = scales;
  set_weight(raw, of.weight, of.weight.values);
  raw.bias = data_of(bias), raw.ends = ends_of(of);
  raw.y = y.mutable_data_ptr();
  launch_planned("packed", plan.kernel, raw, y, launch.stream());
  return y;
}

Tensor packed_dequantized(const LinearProblem& p, const Weight& w) {
  const Launch launch(w.values);
  const Tensor out = aten::empty({p.N, p.K}, p.output, w.values);
  if (p.N == 0) return out;
  const Tensor values = aligned(w.values);
  PackedLinear raw{};
  raw.N = p.N, raw.K = p.K, raw.row_bytes = row_bytes(p.code, p.K), raw.group_size = p.group_size;
  raw.code = p.code, raw.output = element(p.output), raw.scale_type = element(p.scale);
  set_weight(raw, w, values);
  raw.y = out.mutable_data_ptr();
  check(launch_packed_dequantize(raw, launch.stream()), "packed_dequantize");
  return out;
}

}  // namespace aoext::cuda
