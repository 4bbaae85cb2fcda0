// The two C functions by which a library finds torch XPU's queue, as libtorch_xpu.so exports them
// (torch/csrc/inductor/aoti_torch/c/shim_xpu.h, which declares them for builds with XPU only).
//
// A library of its own, which needs nothing: it is opened globally, so that dlsym(RTLD_DEFAULT, ...) finds the
// functions, and whatever it needed would become global with it.
#include "exports.h"

#define XPU_SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
xpu_sim::CurrentQueue current_queue = nullptr;
constexpr int kFailure = 1;
}  // namespace

XPU_SIM_EXPORT void xpu_sim_set_current_queue(xpu_sim::CurrentQueue function) { current_queue = function; }

// The sycl::queue of the current stream of the current device.
XPU_SIM_EXPORT int32_t aoti_torch_get_current_sycl_queue(void** queue) {
  return current_queue ? current_queue(-1, queue) : kFailure;
}

// The same of a given device; a stream of torch XPU's is its sycl::queue.
XPU_SIM_EXPORT int32_t aoti_torch_get_current_xpu_stream(int32_t device, void** stream) {
  return current_queue && device >= 0 ? current_queue(device, stream) : kFailure;
}
