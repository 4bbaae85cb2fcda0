// oneDNN's matrix products on tensors, with memory from PyTorch's allocator.
#pragma once

#include "sycl/onednn/matmul.h"
#include "sycl/operands.h"

namespace aoext::xpu {

onednn::Type onednn_type(ScalarType dtype);

// Whether oneDNN has an implementation of its own for it on this queue's device, other than its reference.
bool onednn_has(sycl::queue& queue, const onednn::Matmul& product);

// y by the product that a plan has chosen, with what it leaves out; operands are contiguous.
void product(sycl::queue& queue, const LinearProblem& p, const onednn::Matmul& product, const Tensor& y, const Dense& o);

}  // namespace aoext::xpu
