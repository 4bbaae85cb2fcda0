#pragma once

#include "common/operands.h"
#include "common/problem.h"

namespace aoext::cpu {

// The product of an input that is quantised to 8 bits; null for zero points that are subtracted.
OptionalTensor scaled_mm(const LinearProblem& p, const Operands& of);

}  // namespace aoext::cpu
