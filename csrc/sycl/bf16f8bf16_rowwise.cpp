// Weight-only float8 on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, bf16f8bf16_rowwise, &explain<plan_rowwise>, generic::bf16f8bf16_rowwise_by<rowwise>)

}  // namespace aoext::xpu
