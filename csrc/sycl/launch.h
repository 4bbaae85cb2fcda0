// Runs a kernel of an embedded module on a queue. It knows nothing of torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <sycl/sycl.hpp>

#include "sycl/device.h"
#include "sycl/modules.h"

namespace aoext::xpu {

// In a work-group of the kernels that know no tiles.
constexpr int64_t kSubGroups = 8;

// The module of a kernel by name, and null where this build has none. Whoever launches keeps it.
const Module* find_module(const std::string& image, const std::string& kernel);
const Module& module(const std::string& image, const std::string& kernel);  // RuntimeError where there is none

// A device in a context: what it offers, and the kernels that it has compiled. It lives as long as the process.
class Target {
 public:
  Target(const sycl::context& context, const sycl::device& device);

  bool is(const sycl::queue& queue) const { return context_ == queue.get_context() && device_ == queue.get_device(); }
  // Has the device compile the kernel's module on first use; threads that ask meanwhile wait.
  const sycl::kernel& kernel(const Module& module);
  bool has(const Module& module) const { return kernels_[place(module)] != nullptr; }

  const Device device;

 private:
  static size_t place(const Module& module) { return static_cast<size_t>(&module - modules().data()); }

  const sycl::context context_;
  const sycl::device device_;
  std::mutex mutex_;
  std::vector<std::atomic<const sycl::kernel*>> kernels_;  // in the order of modules()
};

Target& target_of(const sycl::queue& queue);
bool is_built(const Module& module);  // for any device
inline const Device& device_of(const sycl::queue& queue) { return target_of(queue).device; }

[[noreturn]] void raise_sycl_error(const Module& module, const std::exception& error);

// Arguments are USM pointers and scalars, in the order and of the types of the kernel's parameters.
template <class... Args>
void launch(sycl::queue& queue, const Module& module, const sycl::nd_range<2>& range, const Args&... args) {
  try {
    const sycl::kernel& k = target_of(queue).kernel(module);
    queue.submit([&](sycl::handler& handler) {
      handler.set_args(args...);
      handler.parallel_for(range, k);
    });
  } catch (const sycl::exception& error) {
    raise_sycl_error(module, error);
  }
}

}  // namespace aoext::xpu
