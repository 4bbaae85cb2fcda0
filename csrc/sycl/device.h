// What a SYCL device offers, as far as the choice of a kernel depends on it.
#pragma once

#include <string>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

struct Device {
  std::string name;
  bool gpu;
  bool dpas;            // a matrix engine that takes 8x16x16 tiles of bfloat16 from sub-groups of 16
  bool sub_group_16;    // what every kernel is written for
  bool fp16;            // 16-bit floats in kernels
  size_t local_memory;  // bytes for a work-group
  size_t work_group;    // work-items at most
  int threads;          // sub-groups that run at once, at least
};

// Images are named <source>.<variant>; those of the variant dpas need the matrix engine.
bool needs_dpas(const std::string& image);

// Asked once per device.
const Device& device_of(const sycl::queue& queue);

}  // namespace aoext::xpu
