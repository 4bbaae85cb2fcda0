// Weight-only int8 on CUDA.
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, bf16i8bf16_rowwise, generic::bf16i8bf16_rowwise_by<rowwise>)
AOEXT_REGISTER(CUDA, bf16i8bf16_rowwise_bias, generic::bf16i8bf16_rowwise_bias_by<rowwise>)

}  // namespace aoext::cuda
