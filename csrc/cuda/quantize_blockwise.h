// Dynamic quantisation by blocks on CUDA.
#pragma once

#include <tuple>

#include "common/checks.h"

namespace aoext::cuda {

// Values and scales, [..., blocks] or, with a pitch of at least as many as there are rows, [blocks, pitch]: rows are neighbours.
// (Not where K takes more than one pass.)
std::tuple<Tensor, Tensor> quantize_blockwise(const Tensor& input, ScalarType dtype, const Integers& block_size,
                                              bool power_of_two, int64_t pitch);

}  // namespace aoext::cuda
