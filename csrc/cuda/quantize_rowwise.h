// Dynamic quantisation on CUDA.
#pragma once

#include <tuple>

#include "common/torch_api.h"
#include "cuda/kernels/chunk_sums.h"

namespace aoext::cuda {

std::tuple<Tensor, Tensor> quantize_rowwise(const Tensor& input, ScalarType dtype);

// What a product wants of an input that is quantised for it.
struct RowsForm {
  bool wide = false;    // values as numbers of the input's 16 bits, which codes of 8 bits are exactly
  ChunkSums sums = {};  // of chunks of codes, if it has lines
};

// As far as the kernel can: `wide` has the type of `values` tell, sums are there or not.
struct QuantizedRows {
  Tensor values, scales;
  OptionalTensor sums;
};

QuantizedRows quantize_rowwise(const Tensor& input, ScalarType dtype, const RowsForm& form);

}  // namespace aoext::cuda
