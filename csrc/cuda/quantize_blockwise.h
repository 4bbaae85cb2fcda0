// Dynamic quantisation by blocks on CUDA.
#pragma once

#include <tuple>

#include "common/checks.h"

namespace aoext::cuda {

std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two);

}  // namespace aoext::cuda
