// Weights with a scale a block, int4 under an input of 8 bits, and quantisation by blocks, on an XPU: the kernels for any size.
#include <algorithm>
#include <limits>

#include "common/checks.h"
#include "common/dispatcher.h"
#include "common/sizes.h"
#include "generic/register.h"
#include "sycl/linear_any.h"
#include "sycl/operands.h"
#include "sycl/plan.h"
#include "sycl/queue.h"

namespace aoext::xpu {
namespace {

constexpr const char* kProduct = "linear_any.lanes";
constexpr const char* kQuantize = "quantize_rowwise.lanes";
constexpr const char* kDequantize = "dequantize_blocks.lanes";
constexpr int64_t kDequantizedRows = 32;              // of kernels/dequantize_blocks.cpp
constexpr int64_t kSubGroups = 8;                     // in a work-group of a kernel that quantises or dequantises
constexpr int64_t kMaxWorkGroups = int64_t{1} << 20;  // each goes on with further blocks

bool product_serves(sycl::queue& queue, const LinearProblem& p) { return p.K < kMaxAnyDepth && serves(queue, kProduct); }
bool quantize_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && serves(queue, kQuantize);
}

bool dequantize_serves(sycl::queue& queue, const LinearProblem& p) {
  return p.K <= std::numeric_limits<int>::max() / 2 && serves(queue, kDequantize);
}

Explanation explain_any(const Call& call) {
  return product_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "linear_any"} : generic_explanation();
}

Explanation explain_quantize(const Call& call) {
  return quantize_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", call.op} : generic_explanation();
}

Explanation explain_dequantize(const Call& call) {
  return dequantize_serves(current_queue(call.tensor(0)), call.problem) ? Explanation{"xpu", "dequantize_blocks"}
                                                                        : generic_explanation();
}

OptionalTensor contiguous(const OptionalTensor& t) { return t ? OptionalTensor(aten::contiguous(*t)) : std::nullopt; }
const Tensor* pointer(const OptionalTensor& t) { return t ? &*t : nullptr; }

// Null where the kernel does not serve.
OptionalTensor product(const LinearProblem& p, const Tensor& input, const Tensor& weight, const Tensor& scale,
                       const OptionalTensor& bias, const OptionalTensor& input_scale = {}, const OptionalTensor& table = {},
                       const OptionalTensor& global_scale = {}) {
  sycl::queue& queue = current_queue(input);
  if (!product_serves(queue, p)) return std::nullopt;
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input), dense_weight = aten::contiguous(weight), scales = aten::contiguous(scale);
  const OptionalTensor rows = contiguous(input_scale), values = contiguous(table), dense_bias = contiguous(bias);
  linear_any_blocks(queue, p, y,
                    {x, dense_weight, scales, pointer(values), pointer(global_scale), pointer(rows), pointer(dense_bias)});
  return y;
}

template <auto kCheck, auto kGeneric>
Tensor weight_only(const Tensor& input, const Tensor& weight, const Tensor& scale, const Integers& block_size,
                   const OptionalTensor& bias) {
  const OptionalTensor y = product(kCheck(input, weight, scale, block_size, bias), input, weight, scale, bias);
  return y ? *y : kGeneric(input, weight, scale, block_size, bias);
}

Tensor bf16lut4bf16_blockwise(const Tensor& input, const Tensor& weight, const Tensor& table, const Tensor& scale,
                              const Integers& block_size, const OptionalTensor& global_scale, const OptionalTensor& bias) {
  const LinearProblem p = check_bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
  const OptionalTensor y = product(p, input, weight, scale, bias, {}, table, global_scale);
  return y ? *y : generic::bf16lut4bf16_blockwise(input, weight, table, scale, block_size, global_scale, bias);
}

Tensor scaled_mm_blockwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                           const Integers& input_block, const Integers& weight_block, const OptionalTensor& bias,
                           std::optional<ScalarType> out_dtype) {
  const LinearProblem p =
      check_scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
  const OptionalTensor y = product(p, input, weight, weight_scale, bias, input_scale);
  return y ? *y
           : generic::scaled_mm_blockwise(input, weight, input_scale, weight_scale, input_block, weight_block, bias, out_dtype);
}

Tensor scaled_mm_int4(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& scale,
                      const Tensor& zero_point, const OptionalTensor& bias, std::optional<ScalarType> out_dtype) {
  const LinearProblem p = check_scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  sycl::queue& queue = current_queue(input);
  if (!product_serves(queue, p)) return generic::scaled_mm_int4(input, weight, input_scale, scale, zero_point, bias, out_dtype);
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Tensor x = aten::contiguous(input), rows = aten::contiguous(input_scale);
  linear_any(queue, p, y, x, weight, &scale, &zero_point, &rows, contiguous(bias));
  return y;
}

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two) {
  const LinearProblem p = check_quantize_blockwise(input, dtype, block_size, power_of_two);
  sycl::queue& queue = current_queue(input);
  if (!quantize_serves(queue, p)) return generic::quantize_blockwise(input, dtype, block_size, power_of_two);
  const int64_t blocks = ceil_div(p.K, p.input_group_size);
  const Tensor values = aten::empty(output_sizes(input, p.K), dtype, input);
  const Tensor scales = aten::empty(output_sizes(input, blocks), ScalarType::Float, input);
  if (p.M == 0) return {values, scales};
  const Tensor x = aten::contiguous(input);
  constexpr size_t kWidth = kSubGroups * kLanes;
  const auto work_groups = static_cast<size_t>(std::min(ceil_div(p.M * blocks, kSubGroups), kMaxWorkGroups));
  launch(queue, {kQuantize, "quantize_blockwise"}, sycl::nd_range<2>({1, work_groups * kWidth}, {1, kWidth}),
         values.mutable_data_ptr(), static_cast<float*>(scales.mutable_data_ptr()), x.const_data_ptr(), p.M,
         static_cast<int>(p.K), static_cast<int>(p.input_group_size), int{element(p.input)}, int{element(p.output)},
         static_cast<int>(p.power_of_two));
  return {values, scales};
}

// Null where the kernel does not serve.
OptionalTensor dequantized(const LinearProblem& p, const Tensor& weight, const Tensor& scale, const OptionalTensor& table = {},
                           const OptionalTensor& global_scale = {}) {
  sycl::queue& queue = current_queue(weight);
  if (!dequantize_serves(queue, p)) return std::nullopt;
  const Tensor out = aten::empty({p.N, p.K}, p.output, weight);
  if (p.N == 0) return out;
  const Tensor codes = aten::contiguous(weight), scales = aten::contiguous(scale);
  const OptionalTensor values = contiguous(table);
  constexpr size_t kWidth = kSubGroups * kLanes;
  launch(queue, {kDequantize, "dequantize_blocks"},
         sycl::nd_range<2>(
             {static_cast<size_t>(ceil_div(p.N, kDequantizedRows)), static_cast<size_t>(ceil_div(p.K, int64_t{kWidth})) * kWidth},
             {1, kWidth}),
         out.mutable_data_ptr(), codes.const_data_ptr(), static_cast<const float*>(data_of(values)), scales.const_data_ptr(),
         static_cast<const float*>(data_of(global_scale)), p.N, p.block_n, static_cast<int>(p.K), static_cast<int>(p.group_size),
         int{element(storage(p.code))}, int{element(p.output)}, int{element(p.scale)});
  return out;
}

Tensor dequantize_blockwise(const Tensor& weight, const Tensor& scale, const Integers& block_size,
                            std::optional<ScalarType> dtype) {
  const OptionalTensor w = dequantized(check_dequantize_blockwise(weight, scale, block_size, dtype), weight, scale);
  return w ? *w : generic::dequantize_blockwise(weight, scale, block_size, dtype);
}

Tensor dequantize_lut4(const Tensor& weight, const Tensor& table, const Tensor& scale, const Integers& block_size,
                       const OptionalTensor& global_scale, std::optional<ScalarType> dtype) {
  const LinearProblem p = check_dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
  const OptionalTensor w = dequantized(p, weight, scale, table, global_scale);
  return w ? *w : generic::dequantize_lut4(weight, table, scale, block_size, global_scale, dtype);
}

}  // namespace

AOEXT_REGISTER(XPU, bf16i8bf16_blockwise, &explain_any, &weight_only<check_bf16i8bf16_blockwise, generic::bf16i8bf16_blockwise>)
AOEXT_REGISTER(XPU, bf16f8bf16_blockwise, &explain_any, &weight_only<check_bf16f8bf16_blockwise, generic::bf16f8bf16_blockwise>)
AOEXT_REGISTER(XPU, bf16lut4bf16_blockwise, &explain_any, &bf16lut4bf16_blockwise)
AOEXT_REGISTER(XPU, scaled_mm_blockwise, &explain_any, &scaled_mm_blockwise)
AOEXT_REGISTER(XPU, scaled_mm_int4, &explain_any, &scaled_mm_int4)
AOEXT_REGISTER(XPU, quantize_blockwise, &explain_quantize, &quantize_blockwise)
AOEXT_REGISTER(XPU, dequantize_blockwise, &explain_dequantize, &dequantize_blockwise)
AOEXT_REGISTER(XPU, dequantize_lut4, &explain_dequantize, &dequantize_lut4)
// The two operators that these call are those above.
AOEXT_REGISTER(XPU, scaled_linear_blockwise, &explain_any, &generic::scaled_linear_blockwise)
AOEXT_REGISTER(XPU, scaled_linear_int4, &explain_any, &generic::scaled_linear_int4)

}  // namespace aoext::xpu
