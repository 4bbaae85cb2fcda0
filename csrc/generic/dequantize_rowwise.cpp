// Weights of 8 bits to high precision on any device.
#include "generic/generic.h"
#include "generic/weight_only_8bit.h"

namespace aoext::generic {

Tensor dequantize_rowwise(const Tensor& weight, const Tensor& scale, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_rowwise(weight, scale, dtype);
  Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    aten::copy_(aten::narrow(out, 0, first, count), dequantize_rows(weight, scale, first, count));
  });
  return out;
}

}  // namespace aoext::generic
