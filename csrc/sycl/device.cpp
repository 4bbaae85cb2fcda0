#include "sycl/device.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "cpu/isa.h"
#include "sycl/gpus.h"
#include "sycl/kernels/shape.h"

namespace aoext::xpu {
namespace {

bool has_dpas(const sycl::device& device) {
  if (!device.is_gpu() || !device.has(sycl::aspect::ext_intel_matrix)) return false;
  using sycl::ext::oneapi::experimental::matrix::matrix_type;
  namespace info = sycl::ext::oneapi::experimental::info::device;
  // Xe-HPC, Xe2 and later multiply 16 columns at a time, Xe-HPG (Arc A) 8.
  const auto tiles = device.get_info<info::matrix_combinations>();
  return std::any_of(tiles.begin(), tiles.end(),
                     [](const auto& tile) { return tile.atype == matrix_type::bf16 && tile.nsize == 16 && tile.ksize == 16; });
}

// For tests on a device that is no GPU: "matrix" has the kernels of the matrix engine run with lanes in its place,
// "bare" takes away what all kernels need.
void pretend(Device& device) {
  const char* const wish = std::getenv("AOEXT_XPU_PRETEND");
  if (wish == nullptr || device.gpu) return;
  const std::string text = wish;
  if (text == "matrix") {
    device.engine = Engine::emulated;
  } else if (text == "bare") {
    device.usable = false;
  } else {
    throw std::runtime_error("aoext: AOEXT_XPU_PRETEND must be matrix or bare, got " + text);
  }
}

}  // namespace

Device ask(const sycl::device& device) {
  namespace info = sycl::info::device;
  const auto sub_groups = device.get_info<info::sub_group_sizes>();
  const bool gpu = device.is_gpu();
  const int units = static_cast<int>(device.get_info<info::max_compute_units>());
  Device facts{device.get_info<info::name>(),
               gpu,
               has_dpas(device) ? Engine::dpas : Engine::lanes,
               std::find(sub_groups.begin(), sub_groups.end(), kLanes) != sub_groups.end() && device.has(sycl::aspect::fp16) &&
                   device.get_info<info::local_mem_size>() >= kLocalMemory,
               static_cast<int>(device.get_info<info::max_work_group_size>()),
               gpu ? units * kThreadsOfAVectorEngine : units,
               gpu || cpu::has_vnni()};
  pretend(facts);
  return facts;
}

}  // namespace aoext::xpu
