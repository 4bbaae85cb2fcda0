// Dynamic quantisation on CUDA.
#pragma once

#include <tuple>

#include "common/torch_api.h"
#include "cuda/kernels/chunk_sums.h"

namespace aoext::cuda {

// What a product wants of an input that is quantised for it by rows.
struct RowsForm {
  bool wide = false;    // values as numbers of the input's 16 bits, which codes of 8 bits are exactly
  ChunkSums sums = {};  // of chunks of codes, if it has lines
  bool power_of_two = false;
};

// As far as the kernel can: the type of `values` tells whether they are wide, sums are there or not.
struct QuantizedRows {
  Tensor values, scales;
  OptionalTensor sums = {};
};

QuantizedRows quantize_rows(const Tensor& input, ScalarType dtype, const RowsForm& form = {});

// Values, and scales of blocks of so many elements along k: [..., blocks] or, with a pitch of at least as many as there are rows,
// [blocks, pitch], where rows are neighbours.
std::tuple<Tensor, Tensor> quantize_blocks(const Tensor& input, ScalarType dtype, int64_t block, bool power_of_two,
                                           int64_t pitch);

}  // namespace aoext::cuda
