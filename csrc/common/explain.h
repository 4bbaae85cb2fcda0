// A call of an operator by its name, for aoext.explain and for fake kernels.
#pragma once

#include <string>
#include <vector>

#include "common/checks.h"

namespace aoext {

// The one argument of an operator that is no tensor, where it has one. An explanation does without.
struct Option {
  std::optional<int64_t> number;    // group_size or inner_k_tiles
  std::optional<ScalarType> dtype;  // of what comes out
};

// The problem of ao::<op> for these tensors, the operator's own in their order; a bias may follow.
// Raises RuntimeError for an unknown operator, too few tensors, and whatever the operator would refuse.
LinearProblem check_by_name(const std::string& op, const std::vector<Tensor>& tensors, const Option& option = {});

}  // namespace aoext
