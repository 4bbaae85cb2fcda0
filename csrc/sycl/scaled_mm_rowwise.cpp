// 8-bit × 8-bit with scales, bias and output dtype in the epilogue, on an XPU.
#include "generic/register.h"
#include "sycl/plan.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, scaled_mm_rowwise, &explain<plan_rowwise>, &generic::scaled_mm_rowwise_by<rowwise>)

}  // namespace aoext::xpu
