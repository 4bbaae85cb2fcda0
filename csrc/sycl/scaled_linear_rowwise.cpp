// Dynamic quantisation of the input, and the scaled product, on an XPU.
#include "sycl/quantize_rowwise.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) {
  m.impl("scaled_linear_rowwise", TORCH_BOX((&generic::scaled_linear_rowwise_by<quantize_rowwise, rowwise>)));
}

}  // namespace aoext::xpu
