// The exact int8 product on an XPU.
#include "generic/generic.h"
#include "sycl/rowwise.h"

namespace aoext::xpu {
namespace {

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const OptionalTensor y = rowwise(check_int8_mm(input, weight), {input, weight, nullptr, nullptr, std::nullopt});
  return y ? *y : generic::int8_mm(input, weight);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, XPU, m) { m.impl("int8_mm", TORCH_BOX(&int8_mm)); }

}  // namespace aoext::xpu
