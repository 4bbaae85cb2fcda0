// Rows of int4 to the tinygemm layout.
#include "cuda/device.h"
#include "cuda/kernels/tinygemm.h"
#include "cuda/operands.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles) {
  const LinearProblem p = check_convert_weight_to_int4pack(weight, inner_k_tiles);
  if (!device_of(weight).has_kernels) return generic::convert_weight_to_int4pack(weight, inner_k_tiles);
  const Launch launch(weight);
  const Tensor packed = aten::empty(int4pack_sizes(p), ScalarType::Int, weight);
  if (p.N == 0) return packed;
  const Tensor rows = aligned(weight);
  check(launch_tinygemm_pack(rows.const_data_ptr(), packed.mutable_data_ptr(), p.N, p.K, static_cast<int>(inner_k_tiles),
                             launch.stream()),
        "convert_weight_to_int4pack");
  return packed;
}

Explanation explain_pack(const Call& call) {
  return device_of(call.tensor(0)).has_kernels ? Explanation{"cuda", "convert_weight_to_int4pack"} : generic_explanation();
}

}  // namespace

AOEXT_REGISTER(CUDA, convert_weight_to_int4pack, &explain_pack, &convert_weight_to_int4pack)

}  // namespace aoext::cuda
