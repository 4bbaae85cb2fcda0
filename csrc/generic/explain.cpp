// What a device without kernels of its own answers to aoext.explain and aoext.warmup.
#include "common/torch_api.h"

namespace aoext::generic {
namespace {

std::string explain(const std::string& /*op*/, const std::vector<Tensor>& /*tensors*/) { return "generic: ATen operators"; }

std::string warmup(const Tensor& /*like*/) { return ""; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CompositeExplicitAutograd, m) {
  m.impl("_explain", TORCH_BOX(&explain));
  m.impl("_warmup", TORCH_BOX(&warmup));
}

}  // namespace aoext::generic
