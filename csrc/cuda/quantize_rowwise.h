// Dynamic quantisation on CUDA.
#pragma once

#include <tuple>

#include "common/torch_api.h"
#include "cuda/kernels/chunk_sums.h"

namespace aoext::cuda {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

struct QuantizedRows {
  Tensor values, scales;
  OptionalTensor sums;  // where there are such as are asked for
};

// The same with sums of chunks, if `sums` has lines and the kernel can compute them.
QuantizedRows quantize_rowwise(const Tensor& input, ScalarType dtype, ChunkSums sums);

}  // namespace aoext::cuda
