// Weight-only products on an XPU, and their faces for int4.
#include "generic/products.h"
#include "generic/register.h"
#include "sycl/linear.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, weight_only_linear, &explain_linear, &generic::weight_only_linear_by<linear>)
AOEXT_REGISTER(XPU, bf16i4bf16_rowwise, &explain_linear, &generic::bf16i4bf16_rowwise_by<linear>)
AOEXT_REGISTER(XPU, bf16i4bf16_rowwise_bias, &explain_linear, &generic::bf16i4bf16_rowwise_bias_by<linear>)

}  // namespace aoext::xpu
