// Where PyTorch's work on an XPU goes: its current SYCL queue.
#pragma once

#include <sycl/sycl.hpp>

#include "common/torch_api.h"

namespace aoext::xpu {

// The current stream of the device that holds `t`. Raises RuntimeError where this PyTorch has no XPU.
sycl::queue& current_queue(const Tensor& t);

// Whether what goes to the queue becomes part of a graph.
bool is_recording(const sycl::queue& queue);

// PyTorch's index of the device that a queue of its runs on.
int32_t device_index(const sycl::queue& queue);

}  // namespace aoext::xpu
