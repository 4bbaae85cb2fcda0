// A weight's rows in float32, in every format of common/formats.h.
#pragma once

#include "common/operands.h"
#include "generic/row_blocks.h"

namespace aoext::generic {

// Rows [first, first + count) of w, float32 [count, K].
Tensor dequantized_rows(const LinearProblem& p, const Weight& w, int64_t first, int64_t count);

// The codes of these rows as numbers, or what they look up: float32 [count, K].
Tensor codes_of(const LinearProblem& p, const Weight& w, int64_t first, int64_t count);

// All of w in p.output.
Tensor dequantized(const LinearProblem& p, const Weight& w);

// Columns of scales as one for each of `length` elements that share them by `block`; float32 [rows, length] of scales
// [rows, ceil(length / block)].
Tensor spread(const Tensor& scales, int64_t block, int64_t length);

}  // namespace aoext::generic
