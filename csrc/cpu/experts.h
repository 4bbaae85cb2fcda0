// Products with one weight for all rows or with one for each expert, by the same kernels.
#pragma once

#include "cpu/data.h"
#include "cpu/gemm.h"
#include "generic/products.h"

namespace aoext::cpu {

// A product with one weight: the kernel that it gets, and multiplying some panels of the weight by that.
struct DenseProduct {
  Kernel (*plan)(const LinearProblem& p, const WeightData& w);
  void (*multiply)(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels);
};

// `op` is the operator whose offsets an error names.
Tensor product(const char* op, const LinearProblem& p, const Operands& of, const DenseProduct& dense);

}  // namespace aoext::cpu
