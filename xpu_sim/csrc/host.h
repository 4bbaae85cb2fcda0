// Device memory seen from the host. It is shared, so a kernel of the CPU can work on it as it lies, once the
// device's work is waited for.
#pragma once

#include <ATen/core/Tensor.h>

#include "streams.h"

namespace xpu_sim {

// The current stream of the tensor's device: where work on it is queued.
inline c10::Stream stream_for(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

// A CPU tensor over the same memory, valid as long as the tensor; a CPU tensor is returned as it is.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace xpu_sim
