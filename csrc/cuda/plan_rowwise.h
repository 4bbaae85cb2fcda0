// Which kernel a product with 8-bit weights gets on a CUDA device.
#pragma once

#include "common/checks.h"
#include "common/explanation.h"
#include "cuda/device.h"
#include "cuda/kernels/rowwise_decode.h"
#include "cuda/kernels/rowwise_mma.h"
#include "cuda/kernels/rowwise_wgmma.h"
#include "cuda/kernels/weight_only_wgmma.h"

namespace aoext::cuda {

enum class RowwiseAlgorithm {
  decode,             // few rows of x: a ring of weights in shared memory for each warp (kernels/rowwise_decode.cuh)
  wgmma,              // more, both operands of 8 bits, on compute capability 9.0 (kernels/sm90a/rowwise_wgmma.cuh)
  weight_only_wgmma,  // more, x of 16 bits, there (kernels/sm90a/weight_only_wgmma.cuh)
  scaled_mm,          // many, e4m3 to bf16, there: PyTorch's own kernel
  mma,                // more, anywhere (kernels/rowwise_mma.cuh)
  any,                // every size, type and alignment (kernels/rowwise_any.cu)
  generic,            // ATen operators, where nothing else serves
};

struct RowwisePlan {
  RowwiseAlgorithm algorithm = RowwiseAlgorithm::generic;
  bool copies = false;     // both operands go first to rows that start at multiples of 16 bytes and end in zeros
  int64_t K = 0;           // of the operands then, or the problem's
  bool quantizes = false;  // x first, by decode itself
  RowwiseDecodeConfig decode = {};
  WgmmaConfig wgmma = {};  // of weight_only_wgmma too
  RowwiseMmaConfig mma = {};
};

// The problem as kernels see it, without its pointers, over K of its operands.
RowwiseLinear rowwise_linear(const LinearProblem& p, int64_t K);

// int8_mm, scaled_mm_rowwise, bf16i8bf16_rowwise and bf16f8bf16_rowwise. `aligned`: the weight starts at a multiple of 16 bytes.
RowwisePlan plan_rowwise(const LinearProblem& p, const Device& device, bool aligned);

// scaled_linear_rowwise in one launch, or the product that is left once quantize_rowwise has made x of the weight's type.
RowwisePlan plan_scaled_linear(const LinearProblem& p, const Device& device, bool aligned);

// For aoext.explain.
Explanation explain(const RowwisePlan& plan, const LinearProblem& p);

}  // namespace aoext::cuda
