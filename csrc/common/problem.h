// A call as plans see it, its arguments checked: sizes and dtypes. Of torch it needs the names of dtypes alone.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace aoext {

using torch::headeronly::ScalarType;

// What the bits of a weight's elements mean.
enum class Code { int4, int8, e4m3, e5m2 };

// How a weight [N, K] is stored. Checks make it of an operator's arguments; whoever chooses, launches or computes asks it and no
// operator's name.
struct WeightFormat {
  Code code;
  int64_t group_size;   // elements along k that share a scale; K for one scale a row
  ScalarType scale;     // of the scales, and of the zero points
  bool has_zero_point;  // w = code · scale + zero_point, the zero point a float
};

// y[M, N] = x[M, K] · w[N, K]ᵀ; M counts the rows of all leading dimensions. Of an operator that makes or unpacks a weight, M is
// 0; of one that quantises an input, N is 0.
struct LinearProblem : WeightFormat {
  int64_t M, N, K;
  ScalarType input, output;
  bool has_bias;
  ScalarType bias;        // where there is one
  int64_t inner_k_tiles;  // of a weight in the tinygemm layout: int32 [N/8, K/(16 · inner_k_tiles), 32, inner_k_tiles/2]
};

// The dtype that holds the elements, two of int4 in one of its elements.
constexpr ScalarType storage(Code code) {
  return code == Code::e4m3 ? ScalarType::Float8_e4m3fn : code == Code::e5m2 ? ScalarType::Float8_e5m2 : ScalarType::Char;
}

// Of a weight of one element a byte.
constexpr Code code_of(ScalarType dtype) {
  return dtype == ScalarType::Float8_e4m3fn ? Code::e4m3 : dtype == ScalarType::Float8_e5m2 ? Code::e5m2 : Code::int8;
}

}  // namespace aoext
