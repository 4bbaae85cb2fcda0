// Weight-only int4 from the tinygemm layout: words become float32 rows in cache, which are then multiplied.
#include "cpu/int4pack.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const Int4PackProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  return linear(p, plan_weight_only(p), input, Int4PackWeight(p, weight, scale_and_zero), nullptr, std::nullopt);
}

}  // namespace

AOEXT_REGISTER(CPU, weight_int4pack_mm, &weight_int4pack_mm)

}  // namespace aoext::cpu
