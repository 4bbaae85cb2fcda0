// Weights to high precision on CUDA, in one pass.
#include "cuda/kernels/dequantize_blocks.h"
#include "cuda/kernels/dequantize_int4.h"
#include "cuda/packed.h"
#include "generic/nested_scales.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

bool serves(const LinearProblem& p, const Device& device) { return takes_one_pass(p.K, device); }

Tensor dequantize_int4(const LinearProblem& p, const Weight& w, const Launch& launch, const Tensor& out) {
  DequantizeInt4 raw{};
  raw.weight = static_cast<const uint8_t*>(w.values.const_data_ptr());
  raw.scale = w.scale.const_data_ptr(), raw.zero_point = w.zero_point->const_data_ptr(), raw.out = out.mutable_data_ptr();
  raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = element(p.output), raw.scale_type = element(p.scale);
  check(launch_dequantize_int4(raw, launch.stream()), "dequantize");
  return out;
}

Tensor dequantize_blocks(const LinearProblem& p, const Weight& w, const Launch& launch, const Tensor& out) {
  const OptionalTensor table = dense(w.table), global_scale = dense(w.global_scale);
  DequantizeBlocks raw{};
  raw.weight = static_cast<const uint8_t*>(w.values.const_data_ptr());
  raw.scale = w.scale.const_data_ptr(), raw.out = out.mutable_data_ptr();
  if (w.zero_point != nullptr) raw.zero = static_cast<const int8_t*>(w.zero_point->const_data_ptr());
  raw.table = static_cast<const float*>(data_of(table)), raw.global_scale = static_cast<const float*>(data_of(global_scale));
  raw.N = p.N, raw.K = p.K, raw.block_n = p.block_n, raw.block_k = p.group_size;
  raw.weight_type = element(p.code), raw.type = element(p.output), raw.scale_type = element(p.scale);
  check(launch_dequantize_blocks(raw, launch.stream()), "dequantize");
  return out;
}

Tensor dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                  const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  if (!serves(p, device_of(weight)))
    return generic::dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  const generic::WithFloatScales of(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)});
  const Weight& w = of.weight;
  if (is_in_bytes(p.code)) return packed_dequantized(p, w);
  const Launch launch(weight);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  return p.code == Code::int4 ? dequantize_int4(p, w, launch, out) : dequantize_blocks(p, w, launch, out);
}

Explanation explain_dequantize(const Call& call) {
  if (!serves(call.problem, device_of(call.tensor(0)))) return generic_explanation();
  const Code code = call.problem.code;
  return {"cuda", is_in_bytes(code) ? "packed_dequantize" : code == Code::int4 ? "dequantize_int4" : "dequantize_blocks"};
}

}  // namespace

AOEXT_REGISTER(CUDA, dequantize, &explain_dequantize, &dequantize)

}  // namespace aoext::cuda
