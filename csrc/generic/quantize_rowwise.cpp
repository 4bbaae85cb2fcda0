// Dynamic quantisation by rows on any device.
#include "generic/blocks.h"
#include "generic/generic.h"
#include "generic/quantize.h"

namespace aoext::generic {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const LinearProblem p = check_quantize_rowwise(input, dtype);
  Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::reshape(input, {p.M, p.K});
  const Tensor values2d = aten::reshape(values, {p.M, p.K});
  const Tensor scales2d = aten::reshape(scales, {p.M, 1});
  for_row_blocks(p.M, p.K, [&](int64_t first, int64_t count) {
    const Tensor rows = aten::to(aten::narrow(x, 0, first, count), ScalarType::Float);
    const auto [q, scale] = quantize(rows, dtype, /*power_of_two=*/false);
    aten::copy_(aten::narrow(values2d, 0, first, count), q);
    aten::copy_(aten::narrow(scales2d, 0, first, count), scale);
  });
  return {values, scales};
}

}  // namespace aoext::generic
