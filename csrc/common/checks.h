// What every operator asks of its arguments, and the error texts, once for all devices.
//
// A check returns the call as a problem: sizes and dtypes that a plan can choose by. It raises
// RuntimeError before any memory is read: `ao::<operator>: <argument> must be <what>, got <what>`.
#pragma once

#include <optional>
#include <vector>

#include "common/formats.h"
#include "common/torch_api.h"

namespace aoext {

// check_<operator>, with the operator's own parameters.
#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) LinearProblem check_##name parameters;
#include "operators.inc"

// The shape of a result: the input's leading dimensions, then `last`.
std::vector<int64_t> output_sizes(const Tensor& input, int64_t last);
std::vector<int64_t> int4pack_sizes(const LinearProblem& p);

}  // namespace aoext
