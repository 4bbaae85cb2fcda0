// Weight-only float8 on an XPU.
#include "sycl/rowwise.h"

namespace aoext::xpu {

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) {
  m.impl("bf16f8bf16_rowwise", TORCH_BOX(generic::bf16f8bf16_rowwise_by<rowwise>));
  m.impl("bf16f8bf16_rowwise_bias", TORCH_BOX(generic::bf16f8bf16_rowwise_bias_by<rowwise>));
}

}  // namespace aoext::xpu
