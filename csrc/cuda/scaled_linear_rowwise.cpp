// Dynamic quantisation of the input, and the scaled product, on CUDA.
#include "cuda/quantize_rowwise.h"
#include "cuda/rowwise.h"
#include "generic/register.h"

namespace aoext::cuda {

AOEXT_REGISTER(CUDA, scaled_linear_rowwise, &generic::scaled_linear_rowwise_by<quantize_rowwise, rowwise>)

}  // namespace aoext::cuda
