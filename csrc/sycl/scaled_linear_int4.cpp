// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"

namespace aoext::xpu {
namespace {

// The product, once the input is quantised.
Explanation explain_quantized_int4(const Call& call) {
  LinearProblem p = call.problem;
  p.input = p.quantized;
  return explain<plan_scaled_int4>({call.op, call.tensors, p});
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_linear_int4, &explain_quantized_int4, &generic::scaled_linear_int4)

}  // namespace aoext::xpu
