// The device's own kernel for ao::bf16i4bf16_rowwise: y[m, n] = Σ_k x[m, k] · (q[n, k] · scale[g, n] + zero_point[g, n])
//
//   input       [..., K], bfloat16, float16 or float32, any strides; the result [..., N] has its dtype
//   weight      int8 [N, K/2], the even k in the low nibble, q in -8..7 by two's complement
//   scale       [K/group_size, N], bfloat16, float16 or float32; zero_point is alike; g = k / group_size
//
// The last block of this file is all that ties a device to aoext: no header, no link, no import order.
// The loops show the numbers rather than speed: a row of weights is dequantised once and meets every
// row of the input, in float32.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

namespace hostdev {
namespace {

std::atomic<int64_t> calls{0};

bool is_float(at::ScalarType t) { return t == at::kBFloat16 || t == at::kHalf || t == at::kFloat; }

// Calls f with a value of the C++ type of a dtype that is_float.
template <class F>
void with_float_type(at::ScalarType dtype, const F& f) {
  switch (dtype) {
    case at::kBFloat16: return f(at::BFloat16{});
    case at::kHalf: return f(at::Half{});
    default: return f(float{});
  }
}

struct Sizes {
  int64_t M, N, K, groups;
};

template <class X, class S>
void kernel(const Sizes& p, const X* x, const int8_t* weight, const S* scale, const S* zero_point, X* y) {
  const int64_t group_size = p.K / p.groups;
  std::vector<float> w(p.K);
  for (int64_t n = 0; n < p.N; ++n) {
    for (int64_t k = 0; k < p.K; ++k) {
      const int8_t byte = weight[(n * p.K + k) / 2];
      // Shifting right repeats the sign, so the low nibble moves up to the sign's place first.
      const int q = (k % 2 ? byte : static_cast<int8_t>(byte * 16)) >> 4;
      const int64_t at = k / group_size * p.N + n;
      w[k] = q * static_cast<float>(scale[at]) + static_cast<float>(zero_point[at]);
    }
    for (int64_t m = 0; m < p.M; ++m) {
      float sum = 0;
      for (int64_t k = 0; k < p.K; ++k) sum += static_cast<float>(x[m * p.K + k]) * w[k];
      y[m * p.N + n] = static_cast<X>(sum);
    }
  }
}

// A kernel replaces aoext's checks along with its loops, so it brings its own.
Sizes check(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& zero_point) {
  const char* op = "hostdev: ao::bf16i4bf16_rowwise: ";
  for (const at::Tensor* t : {&weight, &scale, &zero_point}) {
    TORCH_CHECK(t->device() == input.device(), op, "all tensors must be on ", input.device(), ", got ", t->device());
    TORCH_CHECK(t->dim() == 2 && t->is_contiguous(), op, "weight, scale and zero_point must be contiguous matrices");
  }
  TORCH_CHECK(is_float(input.scalar_type()) && input.dim() >= 1 && input.size(-1) > 0 && input.size(-1) % 2 == 0, op,
              "input must be bfloat16, float16 or float32 [..., K] with K even and > 0, got ", input.scalar_type(), " ",
              input.sizes());
  const Sizes p{input.numel() / input.size(-1), weight.size(0), input.size(-1), scale.size(0)};
  TORCH_CHECK(weight.scalar_type() == at::kChar && weight.size(1) == p.K / 2, op, "weight must be int8 [N, K/2] = [*, ", p.K / 2,
              "] for an input with K = ", p.K, ", got ", weight.scalar_type(), " ", weight.sizes());
  TORCH_CHECK(is_float(scale.scalar_type()) && scale.size(1) == p.N && p.groups > 0 && p.K % p.groups == 0, op,
              "scale must be bfloat16, float16 or float32 [K/group_size, N] = [*, ", p.N, "], got ", scale.scalar_type(), " ",
              scale.sizes());
  TORCH_CHECK(zero_point.scalar_type() == scale.scalar_type() && zero_point.sizes() == scale.sizes(), op,
              "zero_point must have scale's dtype and shape, ", scale.scalar_type(), " ", scale.sizes(), ", got ",
              zero_point.scalar_type(), " ", zero_point.sizes());
  return p;
}

at::Tensor bf16i4bf16_rowwise(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& scale,
                              const at::Tensor& zero_point) {
  const Sizes p = check(input, weight, scale, zero_point);
  ++calls;
  const at::Tensor x = input.contiguous();
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = p.N;
  at::Tensor y = at::empty(sizes, input.options());
  with_float_type(input.scalar_type(), [&](auto x_type) {
    with_float_type(scale.scalar_type(), [&](auto scale_type) {
      using X = decltype(x_type);
      using S = decltype(scale_type);
      kernel(p, x.const_data_ptr<X>(), weight.const_data_ptr<int8_t>(), scale.const_data_ptr<S>(), zero_point.const_data_ptr<S>(),
             y.mutable_data_ptr<X>());
    });
  });
  return y;
}

// How often the kernel above has run, for those who want to know which kernel answered.
TORCH_LIBRARY(hostdev, m) {
  m.def("kernel_calls() -> int", [] { return calls.load(); });
}

// aoext defines the operator; this says who computes it on our device.
TORCH_LIBRARY_IMPL(ao, PrivateUse1, m) { m.impl("bf16i4bf16_rowwise", &bf16i4bf16_rowwise); }

}  // namespace
}  // namespace hostdev
