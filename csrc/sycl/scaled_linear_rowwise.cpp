// Dynamic quantisation of the input, and the scaled product, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"
#include "sycl/quantize_rowwise.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, scaled_linear_rowwise, &explain_quantized<plan_rowwise>,
               &generic::scaled_linear_rowwise_by<quantize_rowwise, rowwise>)

}  // namespace aoext::xpu
