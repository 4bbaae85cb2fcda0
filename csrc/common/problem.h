// A call as plans see it, its arguments checked: sizes and dtypes. Of torch it needs the names of dtypes alone.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace aoext {

using torch::headeronly::ScalarType;

// y[M, N] = x[M, K] · w[N, K]ᵀ; M counts the rows of all leading dimensions.
struct LinearProblem {
  int64_t M, N, K;
  int64_t group_size;        // of w along k; K for one scale a row
  ScalarType input, weight;  // of the elements in memory; int4 weights are Char
  ScalarType scale;          // of the weight's scales (and zero points)
  ScalarType output;
  bool has_bias;
  ScalarType bias;  // where there is one
};

// A weight in the tinygemm layout: int32 [N/8, K/(16 · inner_k_tiles), 32, inner_k_tiles/2].
struct Int4PackProblem : LinearProblem {
  int64_t inner_k_tiles;
};

struct QuantizeProblem {
  int64_t M, K;
  ScalarType input, output;
};

}  // namespace aoext
