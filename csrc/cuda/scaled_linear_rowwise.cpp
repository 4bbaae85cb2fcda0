// Dynamic quantisation of the input, and the scaled product, on CUDA.
#include "cuda/quantize_rowwise.h"
#include "cuda/rowwise.h"

namespace aoext::cuda {

STABLE_TORCH_LIBRARY_IMPL(ao, CUDA, m) {
  m.impl("scaled_linear_rowwise", TORCH_BOX((&generic::scaled_linear_rowwise_by<quantize_rowwise, rowwise>)));
}

}  // namespace aoext::cuda
