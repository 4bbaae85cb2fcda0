// The exact int8 product on CUDA.
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, int8_mm, &explain_rowwise<plan_rowwise>, &generic::int8_mm_by<rowwise>)

}  // namespace aoext::cuda
