// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"

namespace aoext::xpu {
namespace {

// The product, once the input is quantised.
Explanation explain_quantized(const Call& call) {
  LinearProblem p = call.problem;
  p.input = storage(p.code);
  return explain<plan_blocks>({call.op, call.tensors, p});
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_linear_blockwise, &explain_quantized, &generic::scaled_linear_blockwise)

}  // namespace aoext::xpu
