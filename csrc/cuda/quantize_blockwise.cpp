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
                                              bool power_of_two, int64_t pitch) {
  const LinearProblem p = check_quantize_blockwise(input, dtype, block_size, power_of_two);
  if (!takes_one_pass(p.K, device_of(input))) return generic::quantize_blockwise(input, dtype, block_size, power_of_two);
  const Launch launch(input);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const int64_t blocks = ceil_div(p.K, p.input_group_size);
  const auto scale_sizes = pitch > 0 ? std::vector<int64_t>{blocks, pitch} : output_sizes(input, blocks);
  // Of rows behind the last, for which a pitch has room, they are zeros.
  const Tensor scales = (pitch > p.M ? aten::zeros : aten::empty)(scale_sizes, ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);
  QuantizeBlockwise raw{};
  raw.x = x.const_data_ptr(), raw.values = values.mutable_data_ptr();
  raw.scales = static_cast<float*>(scales.mutable_data_ptr());
  raw.M = p.M, raw.K = p.K, raw.type = element(p.input), raw.output = element(p.output);
  raw.block = p.input_group_size, raw.power_of_two = power_of_two;
  raw.scale_m = pitch > 0 ? 1 : blocks, raw.scale_k = pitch > 0 ? pitch : 1;
  check(launch_quantize_blockwise(raw, launch.stream()), "quantize_blockwise");
  return {values, scales};
}

namespace {

std::tuple<Tensor, Tensor> quantize(const Tensor& input, ScalarType dtype, const Integers& block_size, bool power_of_two) {
  return quantize_blockwise(input, dtype, block_size, power_of_two, 0);
}

}  // namespace

AOEXT_REGISTER(CUDA, quantize_blockwise, &explain_one_pass, &quantize)

}  // namespace aoext::cuda
