// What a SYCL device offers, as far as the choice of a kernel depends on it.
#pragma once

#include <string>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

struct Device {
  std::string name;
  bool gpu;
  // Which images have kernels for its matrix engine: "dpas" where that takes 8x16x16 tiles of bfloat16 from sub-groups
  // of 16, "emulated" in tests (device.cpp), empty where there is none.
  std::string matrix;
  bool sub_group_16;    // what every kernel is written for
  bool fp16;            // 16-bit floats in kernels
  size_t local_memory;  // bytes for a work-group
  size_t work_group;    // work-items at most
  int threads;          // sub-groups that run at once, at least
  bool exact_int8;      // oneDNN's int8 by int8: a CPU without VNNI has an instruction that saturates alone
};

// Whether this device can run an image, "<source>.<variant>".
bool runs(const Device& device, const std::string& image);

// Asked once per device.
const Device& device_of(const sycl::queue& queue);

}  // namespace aoext::xpu
