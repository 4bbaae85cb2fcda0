// Dynamic quantisation on an XPU.
#pragma once

#include <tuple>

#include "common/torch_api.h"

namespace aoext::xpu {

// Both kinds of blocks are kernels of this image. A work-group goes on with further rows, or blocks, where there are more.
constexpr const char* kQuantizeImage = "quantize_rowwise.lanes";
constexpr int64_t kMaxWorkGroups = int64_t{1} << 20;

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

}  // namespace aoext::xpu
