// Weight-only int8 with a scale a block on CUDA.
#include "cuda/blocks.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, bf16i8bf16_blockwise, &explain_blocks,
               &weight_only_blockwise<check_bf16i8bf16_blockwise, generic::bf16i8bf16_blockwise>)

}  // namespace aoext::cuda
