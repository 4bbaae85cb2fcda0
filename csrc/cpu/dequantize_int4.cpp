// int4 to high precision, a tile of rows at a time.
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
  torch::stable::parallel_for(0, (p.N + kTile - 1) / kTile, grain(kTile, p.K), [&](int64_t begin, int64_t end) {
    std::vector<float> row(p.K);
    for (int64_t first = begin * kTile; first < std::min(end * kTile, p.N); first += kTile) {
      const Int4Weight::Tile tile(w, first, std::min(kTile, p.N - first));
      for (int64_t i = 0; i < std::min(kTile, p.N - first); ++i) {
        tile.row(i, row.data());
        kernels().from_float(element(p.output), row.data(), data + (first + i) * row_bytes, p.K);
      }
    }
  });
  return out;
}

}  // namespace

AOEXT_REGISTER(CPU, dequantize_int4, &dequantize_int4)

}  // namespace aoext::cpu
