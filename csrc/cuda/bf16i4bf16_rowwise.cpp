// Weight-only int4 on CUDA.
#include "common/dispatcher.h"
#include "cuda/kernels/int4_any.h"
#include "cuda/operands.h"
#include "cuda/plan.h"
#include "generic/int4_rowwise.h"

namespace aoext::cuda {
namespace {

using generic::Int4Weight;

Tensor converted(const Tensor& t, ScalarType dtype) { return t.scalar_type() == dtype ? t : aten::to(t, dtype); }

// Null where no kernel of this folder serves.
OptionalTensor linear(const LinearProblem& p, const Tensor& input, const Int4Weight& w, const OptionalTensor& bias) {
  const Tensor x = aligned(input);
  const Plan plan = plan_int4(p, device_of(input), are_aligned({&w.weight, &w.scale, &w.zero_point}));
  if (plan.algorithm == Algorithm::generic) return std::nullopt;
  const Launch launch(input);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  OptionalTensor dense_bias;
  if (bias) dense_bias = aten::contiguous(*bias);
  const Tensor scale = converted(w.scale, plan.scale);
  const Tensor zero_point = converted(w.zero_point, plan.scale);

  Int4Linear raw = int4_linear(p);
  raw.x = x.const_data_ptr();
  raw.weight = static_cast<const uint8_t*>(w.weight.const_data_ptr());
  raw.scale = scale.const_data_ptr(), raw.zero_point = zero_point.const_data_ptr(), raw.scale_type = element(plan.scale);
  raw.bias = data_of(dense_bias);
  raw.y = y.mutable_data_ptr();

  switch (plan.algorithm) {
    case Algorithm::ring: check(launch_int4_ring(raw, plan.ring, launch.stream()), "int4_ring"); break;
    case Algorithm::decode: check(launch_int4_decode(raw, plan.decode, launch.stream()), "int4_decode"); break;
    case Algorithm::batch: {
      const OptionalTensor space = workspace(int4_batch_workspace(raw, plan.batch), y);
      check(launch_int4_batch(raw, plan.batch, data_of(space), launch.stream()), "int4_batch");
      break;
    }
    case Algorithm::mma: {
      const OptionalTensor space = workspace(int4_mma_workspace(raw, plan.mma), y);
      check(launch_int4_mma(raw, plan.mma, data_of(space), launch.stream()), "int4_mma");
      break;
    }
    case Algorithm::wgmma: {
      const OptionalTensor space = workspace(int4_wgmma_workspace(raw, plan.wgmma), y);
      check(launch_int4_wgmma(raw, plan.wgmma, data_of(space), launch.stream()), "int4_wgmma");
      break;
    }
    default: check(launch_int4_any(raw, launch.stream()), "int4_any");
  }
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CUDA, m) {
  m.impl("bf16i4bf16_rowwise", TORCH_BOX(&generic::int4_rowwise<linear>));
  m.impl("bf16i4bf16_rowwise_bias", TORCH_BOX(&generic::int4_rowwise_bias<linear>));
}

}  // namespace aoext::cuda
