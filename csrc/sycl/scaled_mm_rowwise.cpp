// 8-bit × 8-bit with scales, bias and output dtype in the epilogue, on an XPU.
#include "sycl/rowwise.h"

namespace aoext::xpu {

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("scaled_mm_rowwise", TORCH_BOX(&generic::scaled_mm_rowwise_by<rowwise>)); }

}  // namespace aoext::xpu
