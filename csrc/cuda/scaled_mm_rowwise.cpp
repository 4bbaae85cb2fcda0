// 8-bit × 8-bit with scales, bias and output dtype in the epilogue, on CUDA.
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, scaled_mm_rowwise, &explain_rowwise<plan_rowwise>, &generic::scaled_mm_rowwise_by<rowwise>)

}  // namespace aoext::cuda
