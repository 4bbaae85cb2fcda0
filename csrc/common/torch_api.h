// What aoext uses of PyTorch: the LibTorch stable ABI, and nothing else.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <vector>

namespace aoext {

using Sizes = torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A schema's Tensor?, int[] and int[]?.
using OptionalTensor = std::optional<Tensor>;
using Integers = std::vector<int64_t>;
using OptionalIntegers = std::optional<Integers>;

}  // namespace aoext
