// Weight-only int4 from the tinygemm layout.
#include "cuda/operands.h"
#include "cuda/plan_tinygemm.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

// N·K/2 bytes are written and read once more, which many rows of x pay for; they live until the product is queued.
Tensor unpack_and_multiply(const Int4PackProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale_and_zero,
                           cudaStream_t stream) {
  const Tensor words = aligned(weight), pairs = aligned(scale_and_zero);
  const int64_t groups = p.K / p.group_size;
  const Tensor plain = aten::empty({p.N, p.K / 2}, ScalarType::Char, input);
  const Tensor scale = aten::empty({groups, p.N}, ScalarType::BFloat16, input);
  const Tensor zero = aten::empty({groups, p.N}, ScalarType::BFloat16, input);
  check(launch_tinygemm_unpack(words.const_data_ptr(), plain.mutable_data_ptr(), p.N, p.K, static_cast<int>(p.inner_k_tiles),
                               stream),
        "weight_int4pack_mm, unpacking");
  check(launch_tinygemm_split(pairs.const_data_ptr(), scale.mutable_data_ptr(), zero.mutable_data_ptr(), groups * p.N, stream),
        "weight_int4pack_mm, splitting scales and zeros");
  return call("ao::bf16i4bf16_rowwise", "", input, plain, scale, zero);
}

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const Int4PackProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const TinygemmPlan plan = plan_tinygemm(p, input);
  if (plan.algorithm == TinygemmAlgorithm::generic) return generic::weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Launch launch(input);
  const Tensor y = aten::empty({p.M, p.N}, p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  if (plan.algorithm == TinygemmAlgorithm::unpack) return unpack_and_multiply(p, input, weight, scale_and_zero, launch.stream());
  const Tensor x = aligned(input), words = aligned(weight), pairs = aligned(scale_and_zero);
  TinygemmLinear linear = tinygemm_linear(p);
  linear.x = x.const_data_ptr();
  linear.weight = words.const_data_ptr();
  linear.scale_and_zero = pairs.const_data_ptr();
  linear.y = y.mutable_data_ptr();
  check(launch_tinygemm_mm(linear, plan.config, launch.stream()), "weight_int4pack_mm");
  return y;
}

}  // namespace

AOEXT_REGISTER(CUDA, weight_int4pack_mm, &weight_int4pack_mm)

}  // namespace aoext::cuda
