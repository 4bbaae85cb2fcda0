// No kernel is chosen on a GPU before it has given the right numbers there.
//
// A family is what stands or falls together: one kernel of an image for tiles ("int4_tile.dpas_bf16/int4_tile_bf16_m1_g128"),
// all kernels of another image ("quantize_rowwise.lanes") or oneDNN's products of one kind ("onednn.int4.bf16"), so
// that a first call waits for what it needs and no more. Each is checked once per process and device on small random problems
// against the generic kernel; a family that misses the bound, or throws, is turned off with one warning, and plans take the next
// best. It is the one place that waits for a device; while a graph is being captured nothing is checked, and what has not been
// checked yet is not chosen.
//
// The environment variable AOEXT_XPU_SELF_CHECK decides where: "gpu" (the default), "all" (also SYCL devices that are
// no GPU) or "off".
#pragma once

#include <map>
#include <string>

#include <sycl/sycl.hpp>

namespace aoext::xpu {

// Whether this family gives the right results on the queue's device, as far as that is checked there.
bool trusted(sycl::queue& queue, const std::string& family);

// Has the device compile all kernels that it can run, and checks every family. Image or kind of products -> "ok",
// "not checked" or what was wrong.
std::map<std::string, std::string> check_all(sycl::queue& queue);

}  // namespace aoext::xpu
