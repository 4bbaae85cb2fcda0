// The exact int8 product on an XPU.
#include "sycl/rowwise.h"

namespace aoext::xpu {

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("int8_mm", TORCH_BOX(&generic::int8_mm_by<rowwise>)); }

}  // namespace aoext::xpu
