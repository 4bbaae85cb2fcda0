// int4 to high precision, a panel of rows at a time.
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {
namespace {

Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_int4(weight, scale, zero_point, dtype);
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  const Int4Weight w(p, weight, scale, zero_point);
  char* const data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t row_bytes = p.K * static_cast<int64_t>(out.element_size());
  kParallelFor(ceil_div(p.N, kPanel), grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    Int4Weight::Panel panel(w);
    std::vector<float> floats(p.output == ScalarType::Half ? p.K : 0);
    for (int64_t first = begin * kPanel; first < std::min(end * kPanel, p.N); first += kPanel) {
      const int64_t count = std::min<int64_t>(kPanel, p.N - first);
      panel.move(first, count, 0, w.K);
      for (int64_t i = 0; i < count; ++i) {
        char* const row = data + (first + i) * row_bytes;
        if (p.output == ScalarType::Half) {
          kernels().dequantize_int4(panel.int4(i), 0, p.K, Element::fp32, floats.data());
          kernels().from_float(Element::fp16, floats.data(), row, p.K);
        } else {
          kernels().dequantize_int4(panel.int4(i), 0, p.K, element(p.output), row);
        }
      }
    }
  });
  return out;
}

}  // namespace

AOEXT_REGISTER(CPU, dequantize_int4, &explain_rows, &dequantize_int4)

}  // namespace aoext::cpu
