// What every operator asks of its arguments, and the error texts, once for all devices.
//
// A check returns the call as a problem: sizes and dtypes that a plan can choose by. It raises
// RuntimeError before any memory is read: `ao::<operator>: <argument> must be <what>, got <what>`.
#pragma once

#include <optional>

#include "common/problem.h"
#include "common/torch_api.h"

namespace aoext {

using OptionalTensor = std::optional<Tensor>;

LinearProblem check_bf16i4bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& zero_point);
LinearProblem check_bf16i4bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale,
                                            const Tensor& zero_point, const Tensor& bias);
LinearProblem check_bf16i8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale);
LinearProblem check_bf16i8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias);
LinearProblem check_bf16f8bf16_rowwise(const Tensor& input, const Tensor& weight, const Tensor& scale);
LinearProblem check_bf16f8bf16_rowwise_bias(const Tensor& input, const Tensor& weight, const Tensor& scale, const Tensor& bias);
LinearProblem check_int8_mm(const Tensor& input, const Tensor& weight);
LinearProblem check_scaled_mm_rowwise(const Tensor& input, const Tensor& weight, const Tensor& input_scale,
                                      const Tensor& weight_scale, const OptionalTensor& bias,
                                      std::optional<ScalarType> out_dtype);
LinearProblem check_scaled_linear_rowwise(const Tensor& input, const Tensor& weight, const Tensor& weight_scale,
                                          const OptionalTensor& bias);
QuantizeProblem check_quantize_rowwise(const Tensor& input, ScalarType dtype);
// Its output is the dequantised weight: M is 0, `output` the result's dtype.
LinearProblem check_dequantize_int4(const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                                    std::optional<ScalarType> dtype);
// Its output is the packed weight: M and group_size are 0.
Int4PackProblem check_convert_weight_to_int4pack(const Tensor& weight, int64_t inner_k_tiles);
Int4PackProblem check_weight_int4pack_mm(const Tensor& input, const Tensor& weight, int64_t group_size,
                                         const Tensor& scale_and_zero);

// The shape of a result: the input's leading dimensions, then `last`.
std::vector<int64_t> output_sizes(const Tensor& input, int64_t last);
std::vector<int64_t> int4pack_sizes(const Int4PackProblem& p);

}  // namespace aoext
