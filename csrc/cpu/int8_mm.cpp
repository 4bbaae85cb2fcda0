// Exact int8 product: own dot products for few rows, ATen's products for many.
#include "cpu/int8_product.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const LinearProblem p = check_int8_mm(input, weight);
  const Plan plan = plan_scaled(p);
  if (plan.algorithm == Algorithm::panel && p.N > 0) {
    return aten::reshape(int8_panel(plan, aten::reshape(input, {p.M, p.K}), weight), output_sizes(input, p.N));
  }
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  int32_t* const out = static_cast<int32_t*>(y.mutable_data_ptr());
  int8_dot(p, input, weight, [&](int64_t m, int64_t first, int64_t count, const int32_t* acc) {
    std::copy(acc, acc + count, out + m * p.N + first);
  });
  return y;
}

}  // namespace

AOEXT_REGISTER(CPU, int8_mm, &int8_mm)

}  // namespace aoext::cpu
