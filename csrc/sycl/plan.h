// Which kernel a problem gets on an XPU: the only place where shapes choose code.
#pragma once

#include <string>

#include "common/checks.h"
#include "sycl/device.h"
#include "sycl/launch.h"

namespace aoext::xpu {

enum class Algorithm {
  tile,     // a kernel of ours that splits K over the sub-groups of a work-group (kernels/split_k.h)
  generic,  // ATen operators, where the device or the problem has no kernel
};

struct Plan {
  Algorithm algorithm;
  KernelName kernel;
  int rows, columns;  // of y that a work-group takes
  int sub_groups;     // that share K
};

Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned);

std::string describe(const Plan& plan, const Device& device);

}  // namespace aoext::xpu
