// int8 × int8 → int32 on any device, exact, by float32 products.
//
// |x·w| <= 2^14, so a float32 sum over 2^10 of k stays within 2^24, where every integer is exact; int8
// values are exact in TF32 and bfloat16 too, so the matmul precision settings of a device cannot harm.
#include "generic/generic.h"

#include "generic/row_blocks.h"

namespace aoext::generic {
namespace {

constexpr int64_t kExactDepth = 1024;

// aten::add takes a Scalar, which the stable ABI cannot pass, and an integer tensor takes no float one.
Tensor sum(const Tensor& a, const Tensor& b) {
  const Tensor both = call("aten::stack", "", std::vector<Tensor>{a, b}, int64_t{0});
  return call("aten::sum", "dim_IntList", both, std::optional(std::vector<int64_t>{0}), false, std::optional(ScalarType::Int));
}

}  // namespace

Tensor int8_mm(const Tensor& input, const Tensor& weight) {
  const LinearProblem p = check_int8_mm(input, weight);
  Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::reshape(input, {p.M, p.K});
  const Tensor y2d = aten::reshape(y, {p.M, p.N});
  const auto columns = [&](const Tensor& t, int64_t k) {
    return aten::to(aten::narrow(t, 1, k, std::min(kExactDepth, p.K - k)), ScalarType::Float);
  };
  for_row_blocks(p.N, p.K, [&](int64_t first, int64_t count) {
    const Tensor block = aten::narrow(y2d, 1, first, count);
    const Tensor w = aten::narrow(weight, 0, first, count);
    for (int64_t k = 0; k < p.K; k += kExactDepth) {
      const Tensor part = aten::to(aten::mm(columns(x, k), aten::transpose(columns(w, k))), ScalarType::Int);
      aten::copy_(block, k == 0 ? part : sum(block, part));
    }
  });
  return y;
}

}  // namespace aoext::generic
