// Weight-only float8 with a scale a block on an XPU.
#include "generic/register.h"
#include "sycl/blocks_product.h"

namespace aoext::xpu {

AOEXT_REGISTER(XPU, bf16f8bf16_blockwise, &explain<plan_blocks>,
               &weight_only_blockwise<check_bf16f8bf16_blockwise, generic::bf16f8bf16_blockwise>)

}  // namespace aoext::xpu
