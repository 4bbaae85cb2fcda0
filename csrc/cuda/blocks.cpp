#include "cuda/blocks.h"

#include "common/dispatcher.h"
#include "cuda/kernels/blocks_any.h"
#include "cuda/plan_blocks.h"
#include "cuda/rowwise.h"

namespace aoext::cuda {
namespace {

size_t workspace_bytes(const BlockLinear& p, const BlocksKernel& kernel) {
  return std::visit(
      Overloaded{[](const auto&) { return size_t{0}; }, [&](const BlocksWgmmaConfig& c) { return blocks_wgmma_workspace(p, c); },
                 [&](const BlocksMmaConfig& c) { return blocks_mma_workspace(p, c); }},
      kernel);
}

cudaError_t launch_kernel(const BlockLinear& p, const BlocksKernel& kernel, void* workspace, cudaStream_t stream) {
  return std::visit(Overloaded{[](const Generic&) { return cudaErrorNotSupported; },
                               [&](const BlocksAny&) { return launch_blocks_any(p, stream); },
                               [&](const BlocksDecodeConfig& c) { return launch_blocks_decode(p, c, stream); },
                               [&](const Fp4DecodeConfig& c) { return launch_fp4_decode(p, c, stream); },
                               [&](const BlocksWgmmaConfig& c) { return launch_blocks_wgmma(p, c, workspace, stream); },
                               [&](const BlocksMmaConfig& c) { return launch_blocks_mma(p, c, workspace, stream); }},
                    kernel);
}

}  // namespace

OptionalTensor blocks(const LinearProblem& p, const Tensor& input, const generic::BlockwiseWeight& w,
                      const OptionalTensor& bias) {
  if (is_rowwise(p)) return rowwise(p, {input, w.weight, nullptr, &w.scale, bias});
  const BlocksPlan plan = plan_blocks(p, device_of(input), are_aligned({&w.weight}));
  if (std::holds_alternative<Generic>(plan.kernel)) return std::nullopt;
  const Launch launch(input);
  const Tensor x = aligned(input);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const auto dense = [](const OptionalTensor& t) { return t ? OptionalTensor(aten::contiguous(*t)) : t; };
  // Copied where they are not aligned, as a weight is not.
  const Tensor scale = std::holds_alternative<Fp4DecodeConfig>(plan.kernel) ? aligned(w.scale) : w.scale;
  const OptionalTensor table = dense(w.table), global_scale = dense(w.global_scale), dense_bias = dense(bias);

  BlockLinear raw = block_linear(p);
  raw.x = x.const_data_ptr(), raw.weight = w.weight.const_data_ptr(), raw.block_scale = scale.const_data_ptr();
  raw.table = static_cast<const float*>(data_of(table)), raw.global_scale = static_cast<const float*>(data_of(global_scale));
  raw.bias = data_of(dense_bias);
  raw.y = y.mutable_data_ptr();

  const OptionalTensor space = workspace(workspace_bytes(raw, plan.kernel), y);
  check(launch_kernel(raw, plan.kernel, data_of(space), launch.stream()), "blockwise");
  return y;
}

Explanation explain_blocks(const Call& call) {
  const LinearProblem& p = call.problem;
  if (is_rowwise(p)) return explain_rowwise<plan_rowwise>(call);
  return explain(plan_blocks(p, device_of(call.tensor(0)), are_aligned({&call.tensor(1)})));
}

}  // namespace aoext::cuda
