// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, scaled_linear_blockwise, &explain_quantized<plan_blocks>, &generic::scaled_linear_blockwise)

}  // namespace aoext::xpu
