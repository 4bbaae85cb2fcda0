// 8-bit × 8-bit with scales, bias and output dtype in the epilogue, on CUDA.
#include "cuda/rowwise.h"

namespace aoext::cuda {

STABLE_TORCH_LIBRARY_IMPL(ao, CUDA, m) { m.impl("scaled_mm_rowwise", TORCH_BOX(&generic::scaled_mm_rowwise_by<rowwise>)); }

}  // namespace aoext::cuda
