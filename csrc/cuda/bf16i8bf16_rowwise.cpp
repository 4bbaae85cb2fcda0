// Weight-only int8 on CUDA.
#include "cuda/rowwise.h"

namespace aoext::cuda {

STABLE_TORCH_LIBRARY_IMPL(ao, CUDA, m) {
  m.impl("bf16i8bf16_rowwise", TORCH_BOX(generic::bf16i8bf16_rowwise_by<rowwise>));
  m.impl("bf16i8bf16_rowwise_bias", TORCH_BOX(generic::bf16i8bf16_rowwise_bias_by<rowwise>));
}

}  // namespace aoext::cuda
