// Weights with a scale a block [block_n, block_k]: rows of them in float32.
#pragma once

#include "generic/blocks.h"

namespace aoext::generic {

// The operands of a weight in one of these formats; of codes of 8 bits there is no table.
struct BlockwiseWeight {
  const Tensor &weight, &scale;
  OptionalTensor table = {}, global_scale = {}, zero_point = {};
};

// Rows [first, first + count) of w, float32 [count, K]: ((code's value − zero_point) · scale) · global_scale.
Tensor dequantize_rows(const LinearProblem& p, const BlockwiseWeight& w, int64_t first, int64_t count);

// All of w in p.output.
Tensor dequantize(const LinearProblem& p, const BlockwiseWeight& w);

// Columns of scales as one for each of `length` elements that share them by `block`; float32 [rows, length] of scales
// [rows, ceil(length / block)].
Tensor spread(const Tensor& scales, int64_t block, int64_t length);

}  // namespace aoext::generic
