// Dynamic quantisation: a row is scanned for its scale, then, while it is in cache, becomes float32 and its values piece by
// piece.
#include "cpu/quantize_rowwise.h"

#include <algorithm>

#include "common/formats.h"
#include "cpu/linear.h"
#include "generic/register.h"

namespace aoext::cpu {

namespace {
constexpr int64_t kPiece = 512;  // of a row: 2 KB as float32
}

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype) {
  const QuantizeProblem p = check_quantize_rowwise(input, dtype);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, 1), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor rows = aten::contiguous(input);
  const char* const in = static_cast<const char*>(rows.const_data_ptr());
  char* const out = static_cast<char*>(values.mutable_data_ptr());
  float* const scale = static_cast<float*>(scales.mutable_data_ptr());
  const int64_t bytes = static_cast<int64_t>(rows.element_size());
  torch::stable::parallel_for(0, p.M, grain(1, p.K), [&](int64_t begin, int64_t end) {
    float piece[kPiece];
    for (int64_t m = begin; m < end; ++m) {
      const char* const row = in + m * p.K * bytes;
      scale[m] = kernels().row_scale(element(p.input), row, p.K, quantized_max(dtype));
      for (int64_t k = 0; k < p.K; k += kPiece) {
        const int64_t count = std::min(kPiece, p.K - k);
        kernels().to_float(element(p.input), row + k * bytes, piece, count);
        kernels().quantize_row(element(dtype), piece, scale[m], out + m * p.K + k, count);
      }
    }
  });
  return {values, scales};
}

AOEXT_REGISTER(CPU, quantize_rowwise, &quantize_rowwise)

}  // namespace aoext::cpu
