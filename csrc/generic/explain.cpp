// What a device without kernels of its own answers to aoext.explain.
#include "common/torch_api.h"

namespace aoext::generic {
namespace {

std::string explain(const std::string& /*op*/, const std::vector<Tensor>& /*tensors*/) { return "generic: ATen operators"; }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(ao, CompositeExplicitAutograd, m) { m.impl("_explain", TORCH_BOX(&explain)); }

}  // namespace aoext::generic
