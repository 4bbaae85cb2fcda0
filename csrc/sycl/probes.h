// Small random problems that show whether a family of kernels is right on a device.
#pragma once

#include <string>
#include <vector>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

// The families that this device can run.
std::vector<std::string> families(sycl::queue& queue);

// Runs the family's problems, waits, and compares with the generic kernels. Empty where all is right, otherwise
// what was wrong. May throw what a kernel throws.
std::string probe(sycl::queue& queue, const std::string& family);

// While a probe runs, the only family that its thread's plans may take; null otherwise.
const std::string* forced_family();

}  // namespace aoext::xpu
