// Products with 8-bit weights [N, K] that have one scale a row, on an XPU.
#pragma once

#include "generic/rowwise.h"

namespace aoext::xpu {

// Null where no kernel of this folder serves.
OptionalTensor rowwise(const LinearProblem& p, const generic::RowwiseOperands& operands);

}  // namespace aoext::xpu
