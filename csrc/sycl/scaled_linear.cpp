// Dynamic quantisation of the input and the scaled product, each by its own kernel, on an XPU.
#include "generic/products.h"
#include "generic/register.h"
#include "sycl/linear.h"
#include "sycl/quantize.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, scaled_linear, &explain_quantized, (&generic::scaled_linear_by<quantized, linear>))

}  // namespace aoext::xpu
