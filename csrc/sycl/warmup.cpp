// aoext.warmup on an XPU.
#include "common/library.h"
#include "sycl/queue.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

// One line for each family of kernels: "name: verdict".
std::string warmup(const Tensor& like) {
  std::string text;
  for (const auto& [family, verdict] : check_all(current_queue(like))) text += family + ": " + verdict + "\n";
  return text;
}

}  // namespace

AOEXT_LIBRARY_IMPL(XPU, m) { m.impl("_warmup", AOEXT_BOX(&warmup)); }

}  // namespace aoext::xpu
