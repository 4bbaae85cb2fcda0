// GPUs whose numbers are known, for plans of a device that is not at hand (aoext.ops.plan).
#pragma once

#include "sycl/device.h"

namespace aoext::xpu {

struct Gpu {
  const char* name;    // as people say
  Engine engine;       // the A770's multiplies tiles of 8 columns, for which there are no kernels
  int vector_engines;  // what SYCL calls compute units; of a Max 1550 one of two stacks, which PyTorch shows as a device each
};

// Source: Intel's product specifications.
constexpr Gpu kGpus[] = {
    {"Arc B580", Engine::dpas, 160},
    {"Arc 140V", Engine::dpas, 64},
    {"Arc A770", Engine::lanes, 512},
    {"Max 1550", Engine::dpas, 512},
};

constexpr int kThreadsOfAVectorEngine = 8;

inline Device device_like(const Gpu& gpu) {
  return {gpu.name, true, gpu.engine, true, 1024, gpu.vector_engines * kThreadsOfAVectorEngine, true};
}

}  // namespace aoext::xpu
