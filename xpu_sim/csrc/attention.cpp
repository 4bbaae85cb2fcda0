// Attention by PyTorch's plain formula. PyTorch would choose among fused kernels for XPU by a function that
// only a build with XPU has.
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <limits>

namespace xpu_sim {
namespace {

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  std::optional<at::Tensor> added = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    const auto number = [&](double x) { return at::scalar_tensor(x, query.options()); };
    added = at::where(*mask, number(0), number(-std::numeric_limits<double>::infinity()));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, added, dropout, is_causal, {}, scale, enable_gqa));
}

TORCH_LIBRARY_IMPL(aten, XPU, m) { m.impl("scaled_dot_product_attention", &attention); }
TORCH_LIBRARY_IMPL(aten, AutogradXPU, m) { m.impl("scaled_dot_product_attention", &attention); }

}  // namespace
}  // namespace xpu_sim
