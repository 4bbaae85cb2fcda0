// The product with a weight in the tinygemm layout: one body for the operator and for the library of csrc/int4pack_shim/, so that
// both give the same bits. It knows nothing of torch.
#pragma once

#include <functional>

#include "cpu/int4pack.h"

namespace aoext::cpu {

// Calls f(begin, end) for ranges that cover [0, n), of at least `grain` where there are so many, on as many threads as it likes.
using Range = std::function<void(int64_t begin, int64_t end)>;
using ParallelFor = std::function<void(int64_t n, int64_t grain, const Range& f)>;

// y[M, N] = x[M, K] · wᵀ, bfloat16, both contiguous. Results depend neither on the threads nor on the other rows of x.
void int4pack_gemm(int64_t M, const void* x, const Int4PackWeight& weight, void* y, const ParallelFor& parallel_for);

}  // namespace aoext::cpu
