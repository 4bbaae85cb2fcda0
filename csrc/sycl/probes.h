// Small random problems that show whether a family of kernels is right on a device.
#pragma once

#include <string>

#include <sycl/sycl.hpp>

#include "sycl/family.h"

namespace aoext::xpu {

// Whether there are problems that the family serves on this device.
bool has_probes(sycl::queue& queue, const Family& family);

// Runs the family's problems, waits, and compares with the generic kernels. Empty where all is right, otherwise
// what was wrong. May throw what a kernel throws.
std::string probe(sycl::queue& queue, const Family& family);

// While a probe runs, its thread's plans may take the probed family alone, or none, which leaves the generic kernels.
bool is_probing();
bool is_probed(const Family& family);

}  // namespace aoext::xpu
