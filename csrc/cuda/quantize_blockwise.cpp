#include "cuda/quantize_blockwise.h"

#include "common/dispatcher.h"
#include "common/sizes.h"
#include "cuda/device.h"
#include "cuda/kernels/quantize_blockwise.h"
#include "cuda/operands.h"
#include "cuda/plan.h"
#include "generic/register.h"

namespace aoext::cuda {

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  const LinearProblem p = check_quantize_blockwise(input, dtype, block_size, power_of_two);
  if (!takes_one_pass(p.K, device_of(input))) return generic::quantize_blockwise(input, dtype, block_size, power_of_two);
  const Launch launch(input);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, ceil_div(p.K, p.input_group_size)), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);
  QuantizeBlockwise raw{};
  raw.x = x.const_data_ptr(), raw.values = values.mutable_data_ptr();
  raw.scales = static_cast<float*>(scales.mutable_data_ptr());
  raw.M = p.M, raw.K = p.K, raw.type = element(p.input), raw.output = element(p.output);
  raw.block = p.input_group_size, raw.power_of_two = power_of_two;
  check(launch_quantize_blockwise(raw, launch.stream()), "quantize_blockwise");
  return {values, scales};
}

AOEXT_REGISTER(CUDA, quantize_blockwise, &explain_one_pass, &quantize_blockwise)

}  // namespace aoext::cuda
