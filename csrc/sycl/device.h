// What a SYCL device offers, as far as the choice of a kernel depends on it.
#pragma once

#include <string>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

// What multiplies in a kernel: the lanes of a sub-group; a matrix engine that takes 8x16x16 tiles of bfloat16 from sub-groups of
// 16; or, in tests, the kernels of the matrix engine with lanes in its place (device.cpp).
enum class Engine { lanes, dpas, emulated };

struct Device {
  std::string name;
  bool gpu;
  Engine engine;
  bool usable;      // sub-groups of 16, 16-bit floats and the local memory that every kernel is written for
  int work_group;   // work-items at most
  int threads;      // sub-groups that run at once, at least
  bool exact_int8;  // oneDNN's int8 by int8: a CPU without VNNI has an instruction that saturates alone
};

Device ask(const sycl::device& device);

// Whether this device can run kernels for an engine.
inline bool runs(const Device& device, Engine engine) {
  return device.usable && (engine == Engine::lanes || engine == device.engine);
}

}  // namespace aoext::xpu
