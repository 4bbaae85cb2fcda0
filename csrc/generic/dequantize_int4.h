// int4 rows to high precision by ATen operators.
#pragma once

#include "generic/blocks.h"

namespace aoext::generic {

// Rows [first, first + count) of q, float32 [count, K].
Tensor unpack_int4_rows(const Tensor& weight, int64_t first, int64_t count);

// The same of w = q · scale + zero_point, float32 [count, K].
Tensor dequantize_int4_rows(const LinearProblem& p, const Tensor& weight, const Tensor& scale, const Tensor& zero_point,
                            int64_t first, int64_t count);

}  // namespace aoext::generic
