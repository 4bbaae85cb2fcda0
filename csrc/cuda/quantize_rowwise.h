// Dynamic quantisation on CUDA.
#pragma once

#include <tuple>

#include "common/torch_api.h"

namespace aoext::cuda {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

}  // namespace aoext::cuda
