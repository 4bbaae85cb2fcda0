// Every product of this folder: checked operands in, a plan, its kernels.
#pragma once

#include "common/explain.h"
#include "common/operands.h"
#include "common/problem.h"

namespace aoext::xpu {

// Null where no kernel of this folder serves. A product to int32 has no scales: none are read.
OptionalTensor linear(const LinearProblem& p, const Operands& operands);

// For aoext.explain.
Explanation explain_linear(const Call& call);
Explanation explain_quantized(const Call& call);  // of the product once its input is quantised

}  // namespace aoext::xpu
