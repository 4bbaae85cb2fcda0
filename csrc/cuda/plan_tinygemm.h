// Which kernel weight_int4pack_mm gets on a CUDA device.
#pragma once

#include "common/explanation.h"
#include "common/problem.h"
#include "cuda/kernels/tinygemm.h"
#include "cuda/properties.h"

namespace aoext::cuda {

enum class TinygemmAlgorithm {
  direct,   // few rows of x: from the packed layout (kernels/tinygemm_mm.cuh)
  unpack,   // more: the plain layout in a workspace, and bf16i4bf16_rowwise's kernels for it
  generic,  // ATen operators, below compute capability 8.0 and from K = 2^31 on
};

struct TinygemmPlan {
  TinygemmAlgorithm algorithm = TinygemmAlgorithm::generic;
  TinygemmConfig config = {};  // of `direct`
};

// The problem as kernels see it, without its pointers.
TinygemmLinear tinygemm_linear(const LinearProblem& p);

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device);

Explanation explain(const TinygemmPlan& plan);  // for aoext.explain

}  // namespace aoext::cuda
