#include "sycl/queue.h"

#include <stdexcept>

#include "common/portability.h"
#include "generic/register.h"

namespace aoext::xpu {
namespace {

using GetStream = int32_t(int32_t device, void** stream);

// Null where there is no such device or no XPU.
sycl::queue* stream(int32_t device) {
  // Its header declares it in builds with XPU only.
  static GetStream* const get_stream = find_function<GetStream>("aoti_torch_get_current_xpu_stream", "torch_xpu");
  void* queue = nullptr;
  if (get_stream == nullptr || get_stream(device, &queue) != 0) return nullptr;
  return static_cast<sycl::queue*>(queue);
}

bool is_captured(const Tensor& t) { return is_recording(current_queue(t)); }
[[maybe_unused]] const auto captures = is_captured_on[static_cast<int>(Key::XPU)] = &is_captured;

}  // namespace

sycl::queue& current_queue(const Tensor& t) {
  sycl::queue* const queue = stream(t.get_device_index());
  if (queue == nullptr)
    throw std::runtime_error("aoext: PyTorch gave no SYCL queue for xpu:" + std::to_string(t.get_device_index()));
  return *queue;
}

bool is_recording(const sycl::queue& queue) {
  return queue.ext_oneapi_get_state() == sycl::ext::oneapi::experimental::queue_state::recording;
}

int32_t device_index(const sycl::queue& queue) {
  for (int32_t index = 0;; ++index) {
    const sycl::queue* const other = stream(index);
    if (other == nullptr) throw std::runtime_error("aoext: PyTorch does not know the device of a SYCL queue");
    if (other->get_device() == queue.get_device() && other->get_context() == queue.get_context()) return index;
  }
}

}  // namespace aoext::xpu
