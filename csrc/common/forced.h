// A plan that a thread forces on its calls, for tests and benchmarks: aoext.ops.with_plan. It knows nothing of torch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace aoext {

// A kernel that a device can be made to run, and the fields of its configuration.
struct Forceable {
  std::string kernel;
  std::vector<std::string> fields;
};

// A kernel, and some fields of its configuration; the others are what the kernel would be given.
struct Forced {
  std::string text;  // "int4_ring tiles=2 k_splits=4"
  std::string kernel;
  std::vector<std::pair<std::string, int>> fields;

  // What is forced of a field, or else what was chosen.
  int field(const std::string& name, int chosen) const;
};

// What this thread forces, or null.
const Forced* forced();

// Has this thread force a plan, none for "", and returns what was forced before. RuntimeError that names a kernel or a field that
// is not among these kernels'; devices may share a name, and a plan may then have the fields of each.
std::string force(const std::string& plan, const std::vector<Forceable>& kernels);

// RuntimeError: that the kernel does not take the problem on this device; that its configuration does not fit the problem.
[[noreturn]] void refuse_kernel(const Forced& f, const std::string& problem, const std::string& device);
[[noreturn]] void refuse_config(const Forced& f, const std::string& problem, const std::string& config);
[[noreturn]] void refuse_plan(const std::string& what);

}  // namespace aoext
