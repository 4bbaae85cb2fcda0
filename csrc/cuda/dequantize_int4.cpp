// int4 weights to high precision on CUDA, in one pass.
#include "cuda/kernels/dequantize_int4.h"

#include "common/dispatcher.h"
#include "cuda/device.h"
#include "cuda/operands.h"
#include "cuda/plan.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_int4(weight, scale, zero_point, dtype);
  if (!takes_one_pass(p.K, device_of(weight))) return generic::dequantize_int4(weight, scale, zero_point, dtype);
  const Launch launch(weight);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  DequantizeInt4 raw{};
  raw.weight = static_cast<const uint8_t*>(weight.const_data_ptr());
  raw.scale = scale.const_data_ptr(), raw.zero_point = zero_point.const_data_ptr(), raw.out = out.mutable_data_ptr();
  raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = element(p.output), raw.scale_type = element(p.scale);
  check(launch_dequantize_int4(raw, launch.stream()), "dequantize_int4");
  return out;
}

}  // namespace

AOEXT_REGISTER(CUDA, dequantize_int4, &explain_one_pass, &dequantize_int4)

}  // namespace aoext::cuda
