// Exact int8 product.
#include "cpu/explain.h"
#include "cpu/int8_product.h"
#include "cpu/output.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const LinearProblem p = check_int8_mm(input, weight);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  int32_t* const out = static_cast<int32_t*>(y.mutable_data_ptr());
  const Tensor x = aten::contiguous(input);
  int8_product(p, plan_int8(Choice(p)), input_rows(p, data_of(&x)), all_panels(p.N), RowwiseWeight(p, data_of(&weight), {}),
               [&](int64_t m, int64_t first, int64_t count, const int32_t* sums, const float*) {
                 std::copy(sums, sums + count, out + m * p.N + first);
               });
  return y;
}

}  // namespace

AOEXT_REGISTER(CPU, int8_mm, &explain, &int8_mm)

}  // namespace aoext::cpu
