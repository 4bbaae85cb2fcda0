// What the library of exported functions gets from the module: it can ask for nothing itself.
#pragma once

#include <cstdint>

namespace xpu_sim {

// The sycl::queue of a device's current stream, of the current device's for -1. 0 on success (AOTITorchError).
using CurrentQueue = int32_t (*)(int32_t device, void** queue);

}  // namespace xpu_sim

extern "C" void xpu_sim_set_current_queue(xpu_sim::CurrentQueue function);
