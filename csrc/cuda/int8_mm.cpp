// The exact int8 product on CUDA.
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {
namespace {

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const OptionalTensor y = rowwise(check_int8_mm(input, weight), {input, {weight, weight}});
  return y ? *y : generic::int8_mm(input, weight);
}

Explanation explain_product(const Call& call) {
  return explain(plan_rowwise(call.problem, device_of(call.tensor(0)), are_aligned({&call.tensor(1)})), call.problem);
}

}  // namespace

AOEXT_REGISTER(CUDA, int8_mm, &explain_product, &int8_mm)

}  // namespace aoext::cuda
