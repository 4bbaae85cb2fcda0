// A call of an operator's CPU kernel over the memory of the simulated device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>

namespace xpu_sim {

// What is done to each tensor that the operator returns, on the host, before the device sees it.
using ChangeResult = std::function<void(const at::Tensor&)>;

// Waits for the current stream, runs the operator, and leaves its results on the stack as the device's tensors.
// Arguments that it writes, resizes or returns views of are the device's own.
void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, const ChangeResult& change);

}  // namespace xpu_sim
