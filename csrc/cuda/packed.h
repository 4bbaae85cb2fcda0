// Products with weights whose codes lie in blocks of bytes, on CUDA.
#pragma once

#include "cuda/operands.h"
#include "cuda/plan_packed.h"

namespace aoext::cuda {

// Null where no kernel of this folder serves.
OptionalTensor packed(const LinearProblem& p, const Operands& of);

// The weight of a problem without an input, in its output's type.
Tensor packed_dequantized(const LinearProblem& p, const Weight& w);

}  // namespace aoext::cuda
