// int4 weights to high precision on CUDA, in one pass.
#include "cuda/kernels/dequantize_int4.h"
#include "cuda/operands.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

bool serves(const LinearProblem& p, const Device& device) { return p.code == Code::int4 && takes_one_pass(p.K, device); }

Tensor dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                  const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  if (!serves(p, device_of(weight)))
    return generic::dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  const Launch launch(weight);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  DequantizeInt4 raw{};
  raw.weight = static_cast<const uint8_t*>(weight.const_data_ptr());
  raw.scale = scale.const_data_ptr(), raw.zero_point = zero_point->const_data_ptr(), raw.out = out.mutable_data_ptr();
  raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = element(p.output), raw.scale_type = element(p.scale);
  check(launch_dequantize_int4(raw, launch.stream()), "dequantize");
  return out;
}

Explanation explain_dequantize(const Call& call) {
  return serves(call.problem, device_of(call.tensor(0))) ? Explanation{"cuda", "dequantize_int4"} : generic_explanation();
}

}  // namespace

AOEXT_REGISTER(CUDA, dequantize, &explain_dequantize, &dequantize)

}  // namespace aoext::cuda
