// The exact int8 product on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, int8_mm, &explain<plan_rowwise>, &generic::int8_mm_by<rowwise>)

}  // namespace aoext::xpu
