// Every operator by ATen operators: what serves a device, or a problem, that has no kernel of its own.
#pragma once

#include <optional>
#include <tuple>

#include "common/checks.h"

namespace aoext::generic {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

#define AOEXT_OPERATOR(name, result, parameters, c_parameters, schema) result name parameters;
#include "operators.inc"

}  // namespace aoext::generic
