// The exact int8 product on CUDA.
#include "cuda/rowwise.h"

namespace aoext::cuda {

STABLE_TORCH_LIBRARY_IMPL(ao, CUDA, m) { m.impl("int8_mm", TORCH_BOX(&generic::int8_mm_by<rowwise>)); }

}  // namespace aoext::cuda
