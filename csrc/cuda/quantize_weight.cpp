// Writing a plain matrix into a quantised weight, on CUDA.
#include "common/quantize_weight.h"

#include "common/library.h"
#include "cuda/kernels/quantize_weight.h"
#include "cuda/operands.h"

namespace aoext::cuda {
namespace {

Tensor write(const LinearProblem& p, const WeightWrite& w) {
  const Launch launch(w.weight);
  const Tensor status = aten::empty({kWeightStatuses}, ScalarType::Int, w.weight);
  QuantizeWeight raw{};
  raw.x = w.source.const_data_ptr(), raw.pitch = w.source.stride(0), raw.N = p.N, raw.K = p.K, raw.type = element(p.input);
  raw.codes = w.weight.mutable_data_ptr(), raw.code = element(p.code);
  raw.scale = w.scale.mutable_data_ptr(), raw.scale_type = element(p.scale);
  raw.zero_point = data_of(w.zero_point);
  raw.table = static_cast<const float*>(data_of(w.table));
  raw.global_scale = static_cast<float*>(data_of(w.global_scale));
  raw.block_n = p.block_n, raw.block_k = p.group_size;
  raw.symmetric = static_cast<int>(w.symmetric);
  raw.keep = w.rtol >= 0, raw.rtol = static_cast<float>(w.rtol), raw.atol = static_cast<float>(w.atol);
  raw.check = w.check;
  static_assert(sizeof(WeightStatusWords) == kWeightStatuses * sizeof(int32_t));
  raw.status = static_cast<WeightStatusWords*>(status.mutable_data_ptr());
  check(launch_quantize_weight(raw, device_of(w.weight).multiprocessors, launch.stream()), "_quantize_weight_");
  return status;
}

AOEXT_LIBRARY_IMPL(CUDA, m) { m.impl("_quantize_weight_", AOEXT_BOX(&quantize_weight<&write>)); }

}  // namespace
}  // namespace aoext::cuda
