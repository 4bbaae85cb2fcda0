// Weights to high precision, a panel of rows at a time.
#include "cpu/explain.h"
#include "cpu/linear.h"
#include "generic/nested_scales.h"
#include "generic/register.h"
#include "generic/weight_rows.h"

namespace aoext::cpu {
namespace {

// row(panel, i, out) writes row i of a panel, p.K elements.
template <class Weight, class Row>
Tensor dequantize_panels(const LinearProblem& p, const Tensor& like, const Weight& weight, const Row& row) {
  const Tensor out = aten::empty({p.N, p.K}, p.output, like);
  char* const data = static_cast<char*>(out.mutable_data_ptr());
  const int64_t row_bytes = p.K * static_cast<int64_t>(out.element_size());
  kParallelFor(ceil_div(p.N, kPanel), grain(kPanel, p.K), [&](int64_t begin, int64_t end) {
    typename Weight::Panel panel(weight);
    std::vector<float> floats(p.K);
    for (int64_t first = begin * kPanel; first < std::min(end * kPanel, p.N); first += kPanel) {
      const int64_t count = std::min<int64_t>(kPanel, p.N - first);
      panel.move(first, count, 0, p.K);
      for (int64_t i = 0; i < count; ++i) row(panel, i, floats.data(), data + (first + i) * row_bytes);
    }
  });
  return out;
}

Tensor dequantize(const Tensor& weight, const Tensor& scale, int64_t code, const OptionalIntegers& block_size,
                  const OptionalTensor& zero_point, const OptionalTensor& table, const OptionalTensor& global_scale,
                  std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize(weight, scale, code, block_size, zero_point, table, global_scale, dtype);
  const generic::WithFloatScales w(p, {weight, scale, pointer_to(zero_point), pointer_to(table), pointer_to(global_scale)});
  const Weight& of = w.weight;
  if (p.subtracts_zero_point || !knows(Key::CPU, p.code)) return generic::dequantized(p, of);
  const Element type = element(p.output);
  if (is_in_planes(p.code)) {
    const PlanesWeight planes(p, data_of(of));
    return dequantize_panels(p, weight, planes, [&](const auto& panel, int64_t i, float* floats, char* out) {
      kernels().dequantize_blockwise(panel.rows(0), i, 0, p.K, floats);
      for (int64_t g = 0; planes.has_zero_points && g < planes.groups; ++g)
        for (int64_t k = g * p.group_size; k < (g + 1) * p.group_size; ++k) floats[k] += panel.zero_points(i)[g];
      kernels().from_float(type, floats, out, p.K);
    });
  }
  if (is_by_groups(p.code))
    return dequantize_panels(p, weight, Int4Weight(p, data_of(of)), [&](const auto& panel, int64_t i, float* floats, char* out) {
      if (type != Element::fp16) return kernels().dequantize_int4(panel.int4(i), 0, p.K, type, out);
      kernels().dequantize_int4(panel.int4(i), 0, p.K, Element::fp32, floats);
      kernels().from_float(type, floats, out, p.K);
    });
  const BlockwiseWeight blocks(p, data_of(of));
  return dequantize_panels(p, weight, blocks, [&](const auto& panel, int64_t i, float* floats, char* out) {
    kernels().dequantize_blockwise(panel.rows(0), i, 0, p.K, floats);
    kernels().scale_row(type, floats, blocks.global_scale, nullptr, nullptr, out, p.K);
  });
}

}  // namespace

AOEXT_REGISTER(CPU, dequantize, &explain, &dequantize)

}  // namespace aoext::cpu
