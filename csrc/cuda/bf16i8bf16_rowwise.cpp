// Weight-only int8 on CUDA.
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, bf16i8bf16_rowwise, &explain_rowwise<plan_rowwise>, generic::bf16i8bf16_rowwise_by<rowwise>)

}  // namespace aoext::cuda
