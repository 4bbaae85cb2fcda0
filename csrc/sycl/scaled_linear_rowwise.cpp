// Dynamic quantisation of the input, and the scaled product, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"
#include "sycl/quantize_rowwise.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {
namespace {

// The product, once the input is quantised.
Explanation explain_quantized(const Call& call) {
  LinearProblem p = call.problem;
  p.input = storage(p.code);
  return explain<plan_rowwise>({call.op, call.tensors, p});
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_linear_rowwise, &explain_quantized, &generic::scaled_linear_rowwise_by<quantize_rowwise, rowwise>)

}  // namespace aoext::xpu
