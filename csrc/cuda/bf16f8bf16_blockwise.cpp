// Weight-only float8 with a scale a block on CUDA.
#include "cuda/blocks.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, bf16f8bf16_blockwise, &explain_blocks,
               &weight_only_blockwise<check_bf16f8bf16_blockwise, generic::bf16f8bf16_blockwise>)

}  // namespace aoext::cuda
