// Plans choose a kernel on a GPU only after it has given the right numbers there.
//
// A family (family.h) is the unit of trust. It is so small that a first call waits for the check of what it needs only. Each is
// checked once per process and device, on small random problems against the generic kernel. A family that misses the bound, or
// throws, is disabled with one warning, and plans choose the next best. Only this check waits for a device; while a graph is
// captured nothing is checked, and a family that is not checked yet is not chosen.
//
// The environment variable AOEXT_XPU_SELF_CHECK decides where: "gpu" (the default), "all" (also SYCL devices that are
// no GPU) or "off".
#pragma once

#include <map>
#include <string>

#include <sycl/sycl.hpp>

#include "sycl/family.h"

namespace aoext::xpu {

// Whether a family gives the right results on the queue's device, as far as that is checked there; unknown while a graph is
// captured before the check.
enum class Trust { no, yes, unknown };
Trust trusted(sycl::queue& queue, const Family& family);

// Has the device compile all kernels that it can run, and checks every family. Image or kind of products -> "ok",
// "not checked" or what was wrong.
std::map<std::string, std::string> check_all(sycl::queue& queue);

}  // namespace aoext::xpu
