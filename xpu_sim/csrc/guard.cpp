// What generic PyTorch code asks of a device: which one is current, its streams and its events.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "events.h"
#include "streams.h"

namespace xpu_sim {
namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kXPU; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return {c10::kXPU, current_device()}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kDevices) set_current_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.has_index()) set_current_device(device.index());
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return pool_stream(device.index()); }
  c10::Stream getNewStream(c10::Device device, int) const override { return pool_stream(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = current_stream(stream.device_index());
    set_current_stream(stream);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &queue_of(stream); }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_counted(stream); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    check_device(device);
    wait_counted(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "xpu_sim: an event of xpu:", int{device},
                " cannot be recorded on ", stream);
    xpu_sim::record(reinterpret_cast<Event*&>(*event), stream);
  }
  void block(void* event, const c10::Stream& stream) const override { xpu_sim::block(static_cast<Event*>(event), stream); }
  bool queryEvent(void* event) const override { return is_complete(static_cast<Event*>(event)); }
  void synchronizeEvent(void* event) const override { wait_counted(static_cast<Event*>(event)); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy(static_cast<Event*>(event)); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_milliseconds(static_cast<Event*>(start), static_cast<Event*>(end));
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }  // every dtype
};

C10_REGISTER_GUARD_IMPL(XPU, Guard)

}  // namespace
}  // namespace xpu_sim
