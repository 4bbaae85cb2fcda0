// What PyTorch's generic code asks of XPU as a whole: torch.accelerator, pinned memory, torch.xpu.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/XPUHooksInterface.h>

#include <new>
#include <typeinfo>

#include "allocator.h"
#include "streams.h"

namespace xpu_sim {
namespace {

// Named as torch's registry names it.
struct XPUHooks final : at::XPUHooksInterface {
  void init() const override {}
  bool hasXPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  std::string showConfig() const override { return "xpu_sim: XPU simulated on the OpenCL CPU device"; }

  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getNumGPUs() const override { return kDevices; }
  c10::DeviceIndex current_device() const override { return xpu_sim::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return xpu_sim::current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = xpu_sim::current_device();
    if (index >= 0) set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  int32_t getGlobalIdxFromDevice(const c10::Device& device) const override { return device.index(); }
  void deviceSynchronize(c10::DeviceIndex index) const override { wait_counted(index); }

  c10::Device getDeviceFromPtr(void* data) const override {
    const auto device = device_of(data);
    TORCH_CHECK(device && *device >= 0, "xpu_sim: ", data, " is not memory of an XPU device");
    return {c10::kXPU, static_cast<c10::DeviceIndex>(*device)};
  }
  bool isPinnedPtr(const void* data) const override { return device_of(data) == Block::kPinned; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  // Random numbers are drawn on the CPU.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

using at::RegistererXPUHooksRegistry;
using at::XPUHooksRegistry;
REGISTER_XPU_HOOKS(XPUHooks)

// torch creates its hooks once, at the first question after XPU (torch.accelerator.is_available() is one).
// If that came before this library, torch holds the interface itself, which knows of no XPU. Neither class
// has members, so ours can take its place in the same memory.
[[maybe_unused]] const bool installed = [] {
  static_assert(sizeof(XPUHooks) == sizeof(at::XPUHooksInterface));
  auto& hooks = const_cast<at::XPUHooksInterface&>(at::detail::getXPUHooks());
  if (typeid(hooks) == typeid(at::XPUHooksInterface)) new (&hooks) XPUHooks;
  return true;
}();

}  // namespace
}  // namespace xpu_sim
