// Weight-only int4 from the tinygemm layout, by way of plain int4.
#include "cpu/explain.h"
#include "cpu/int4pack_gemm.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero) {
  const LinearProblem p = check_weight_int4pack_mm(input, weight, group_size, scale_and_zero);
  const Int4PackWeight w{static_cast<const uint32_t*>(weight.const_data_ptr()),
                         static_cast<const char*>(scale_and_zero.const_data_ptr()),
                         Int4PackShape(p.K, p.inner_k_tiles),
                         p.N,
                         p.K,
                         group_size};
  const Tensor x = aten::contiguous(input), y = aten::empty({p.M, p.N}, p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  int4pack_gemm(p.M, x.const_data_ptr(), w, y.mutable_data_ptr(), kParallelFor);
  return y;
}

}  // namespace

AOEXT_REGISTER(CPU, weight_int4pack_mm, &explain, &weight_int4pack_mm)

}  // namespace aoext::cpu
