// oneDNN's matrix products on tensors, with memory from PyTorch's allocator.
#pragma once

#include "common/torch_api.h"
#include "sycl/onednn/matmul.h"

namespace aoext::xpu {

onednn::Type onednn_type(ScalarType dtype);

// Whether oneDNN has an implementation of its own for it on this queue's device, other than its reference.
bool onednn_has(sycl::queue& queue, const onednn::Matmul& product);

// Runs it; the scratchpad comes from the allocator of `like`'s device.
void multiply(sycl::queue& queue, const onednn::Matmul& product, onednn::Arguments arguments, const Tensor& like);

}  // namespace aoext::xpu
