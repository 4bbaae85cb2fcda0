// Products of an input of 8 bits on an XPU: scaled_mm, its face for scales of rows, and int8_mm, which has no scales.
#include "generic/products.h"
#include "generic/register.h"
#include "sycl/linear.h"

namespace aoext::xpu {
namespace {

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const OptionalTensor y = linear(check_int8_mm(input, weight), {input, {weight, weight}});
  return y ? *y : generic::int8_mm(input, weight);
}

}  // namespace

AOEXT_REGISTER(XPU, scaled_mm, &explain_linear, &generic::scaled_mm_by<linear>)
AOEXT_REGISTER(XPU, scaled_mm_rowwise, &explain_linear, &generic::scaled_mm_rowwise_by<linear>)
AOEXT_REGISTER(XPU, int8_mm, &explain_linear, &int8_mm)

}  // namespace aoext::xpu
