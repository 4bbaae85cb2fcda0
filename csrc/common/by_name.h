// A call of an operator by its name, for aoext.explain and for fake kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/checks.h"

namespace aoext {

// The arguments of a call, by kind and in their order.
struct Arguments {
  std::vector<OptionalTensor> tensors;
  std::vector<int64_t> numbers;     // a list of numbers has its length first, −1 for None; a bool is 0 or 1
  std::optional<ScalarType> dtype;  // the one argument of an operator that is a dtype
};

struct Call {
  const std::string& op;
  const std::vector<OptionalTensor>& tensors;
  const LinearProblem& problem;

  const Tensor& tensor(size_t i) const { return *tensors[i]; }  // one that may not be None
  const Tensor* named(const char* name) const;                  // null where it is None, or no argument of the operator
};

// The problem of ao::<op> for these arguments. Raises RuntimeError for an unknown operator, for arguments that are too few (a
// tensor that may be None and those behind it can be left out), and whatever the operator would refuse.
LinearProblem check_by_name(const std::string& op, const Arguments& arguments);

// The names of all operators, a line each.
std::string operator_names();

}  // namespace aoext
