// A call of an operator by its name, for aoext.explain and for fake kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/checks.h"

namespace aoext {

// The arguments of a call: tensors in their order, one that may be None only where it is none, and the one argument of an
// operator that is no tensor.
struct Arguments {
  std::vector<Tensor> tensors;
  std::optional<int64_t> number;    // group_size or inner_k_tiles
  std::optional<ScalarType> dtype;  // of what comes out
};

struct Call {
  const std::string& op;
  const std::vector<Tensor>& tensors;
  const LinearProblem& problem;
};

// The problem of ao::<op> for these arguments. Raises RuntimeError for an unknown operator, for arguments that are too few, and
// whatever the operator would refuse.
LinearProblem check_by_name(const std::string& op, const Arguments& arguments);

// The names of all operators, a line each.
std::string operator_names();

}  // namespace aoext
