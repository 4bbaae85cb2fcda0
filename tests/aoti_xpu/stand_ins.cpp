// What a package for XPU takes from libtorch_xpu and from Level Zero's loader, on a simulated XPU. The current device is
// the first and its stream the one that is given to the package, so guards have nothing to do; the stream itself comes
// from xpu_sim. A package whose kernels are our operators' loads no module: what loads one is called by nobody, and stops.
#include <cstdint>
#include <cstdlib>

extern "C" {
int aoti_torch_create_xpu_guard(int32_t, void** guard) {
  *guard = nullptr;
  return 0;
}
int aoti_torch_delete_xpu_guard(void*) { return 0; }
int aoti_torch_xpu_guard_set_index(void*, int32_t) { return 0; }
int aoti_torch_create_xpu_stream_guard(void*, int32_t, void** guard) {
  *guard = nullptr;
  return 0;
}
int aoti_torch_delete_xpu_stream_guard(void*) { return 0; }
int aoti_torch_get_current_xpu_device(int32_t* index) {
  *index = 0;
  return 0;
}
int aoti_torch_set_current_xpu_device(const int32_t&) { return 0; }
void zeModuleCreate() { std::abort(); }
void zeModuleBuildLogGetString() { std::abort(); }
void zeModuleBuildLogDestroy() { std::abort(); }
void zeKernelCreate() { std::abort(); }
}

namespace c10::xpu {
void current_device() { std::abort(); }
void get_raw_device(signed char) { std::abort(); }
void get_device_context() { std::abort(); }
}  // namespace c10::xpu
