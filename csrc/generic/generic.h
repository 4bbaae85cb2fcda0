// Every operator by ATen operators: what serves a device, or a problem, that has no kernel of its own.
#pragma once

#include <optional>
#include <tuple>

#include "common/checks.h"

namespace aoext::generic {

Tensor bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point);
Tensor bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                               const Tensor& bias);
Tensor dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point, std::optional<ScalarType> dtype);
Tensor convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles);
Tensor weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size, const Tensor& scale_and_zero);
Tensor bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale);
Tensor bf16i8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias);
Tensor bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale);
Tensor bf16f8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias);
Tensor int8_mm(const Tensor& input, const Tensor& weight);
Tensor scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale, const Tensor& weight_scale,
                         const OptionalTensor& bias, std::optional<ScalarType> out_dtype);
std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);
Tensor scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale, const OptionalTensor& bias);

}  // namespace aoext::generic
