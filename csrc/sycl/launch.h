// Runs a kernel of an embedded module on a queue. It knows nothing of torch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

// In a work-group of the kernels that know no tiles.
constexpr int64_t kSubGroups = 8;

struct KernelName {
  std::string image;
  std::string name;

  std::string full() const { return image + "/" + name; }
};

// Has the device compile the kernel's module on first use, once for each context and device; threads that ask meanwhile wait.
sycl::kernel kernel(const sycl::queue& queue, const KernelName& name);

// Whether this build of the library has it.
bool has_kernel(const KernelName& name);

[[noreturn]] void raise_sycl_error(const KernelName& name, const std::exception& error);

// Arguments are USM pointers and scalars, in the order and of the types of the kernel's parameters.
template <class... Args>
void launch(sycl::queue& queue, const KernelName& name, const sycl::nd_range<2>& range, const Args&... args) {
  try {
    const sycl::kernel k = kernel(queue, name);
    queue.submit([&](sycl::handler& handler) {
      handler.set_args(args...);
      handler.parallel_for(range, k);
    });
  } catch (const sycl::exception& error) {
    raise_sycl_error(name, error);
  }
}

}  // namespace aoext::xpu
