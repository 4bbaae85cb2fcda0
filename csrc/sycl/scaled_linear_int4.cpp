// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/register.h"
#include "sycl/blocks_product.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, scaled_linear_int4, &explain_any, &generic::scaled_linear_int4)

}  // namespace aoext::xpu
