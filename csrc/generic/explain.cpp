// What a device without kernels of its own answers to aoext.explain and aoext.warmup; and what operators refuse, on every device.
#include "common/explain.h"

#include "common/library.h"

namespace aoext::generic {
namespace {

std::string explain(const std::string& /*op*/, const std::vector<Tensor>& /*tensors*/) { return "generic: ATen operators"; }

std::string warmup(const Tensor& /*like*/) { return ""; }

void check_call(const std::string& op, const std::vector<Tensor>& tensors, std::optional<int64_t> number,
                std::optional<ScalarType> dtype) {
  check_by_name(op, tensors, {number, dtype});
}

}  // namespace

AOEXT_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("_explain", TORCH_BOX(&explain));
  m.impl("_warmup", TORCH_BOX(&warmup));
  m.impl("_check_call", TORCH_BOX(&check_call));
}

}  // namespace aoext::generic
