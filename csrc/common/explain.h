// A call of an operator by its name, for aoext.explain.
#pragma once

#include <string>
#include <vector>

#include "common/checks.h"

namespace aoext {

// The problem of ao::<op> for these tensors, the operator's own in their order; a bias may follow.
// Raises RuntimeError for an unknown operator, too few tensors, and whatever the operator would refuse.
LinearProblem check_by_name(const std::string& op, const std::vector<Tensor>& tensors);

}  // namespace aoext
