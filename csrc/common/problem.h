// A call as plans see it, its arguments checked: sizes and dtypes. Torch gives it the names of dtypes and nothing else.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/element.h"

namespace aoext {

using torch::headeronly::ScalarType;

// How a weight [N, K] is stored. Checks make it of an operator's arguments; whoever chooses, launches or computes asks it and no
// operator's name.
struct WeightFormat {
  Code code;
  int64_t group_size;                 // elements along k that share a scale; K for one scale a row
  int64_t block_n = 1;                // rows that share one
  ScalarType scale;                   // of the scales, and of the zero points; exponents in uint8 count as float8_e8m0fnu
  bool has_zero_point = false;        // w = code · scale + zero_point, the zero point a float
  bool subtracts_zero_point = false;  // w = (code − zero_point) · scale, the zero point of the code's type
  int64_t global_scales = 0;          // w = code · scale · global_scale: float32, one for all of the weight or for each expert
  bool has_nested_scale = false;  // scales are codes of 8 bits, which become floats before a kernel has them: `scale` is float32

  auto operator<=>(const WeightFormat&) const = default;
};

// y[M, N] = x[M, K] · w[N, K]ᵀ; M counts the rows of all leading dimensions. M is 0 for an operator that makes or unpacks a
// weight, N for one that quantises an input.
struct LinearProblem : WeightFormat {
  int64_t M, N, K;
  int64_t experts;  // of a grouped product, whose rows of x have a weight each expert; 0 where one weight is for all
  ScalarType input, output;
  bool has_bias;
  ScalarType bias;        // where there is one
  int64_t inner_k_tiles;  // of a weight in the tinygemm layout: int32 [N/8, K/(16 · inner_k_tiles), 32, inner_k_tiles/2]
  // An input of 8 bits, or that is quantised to them, has one scale for so many elements along k, rounded up to a power of two
  // where asked; 0 where the input has no scales.
  int64_t input_group_size;
  bool power_of_two;
  ScalarType quantized;  // what an input is quantised to

  auto operator<=>(const LinearProblem&) const = default;
};

// "M = 17, N = 4096, …": for messages about plans.
inline std::string text(const LinearProblem& p) {
  const auto part = [](const char* name, int64_t value) { return std::string(name) + " = " + std::to_string(value); };
  std::string all = part("M", p.M) + ", " + part("N", p.N) + ", " + part("K", p.K);
  if (p.experts > 0) all += ", " + part("experts", p.experts);
  if (p.group_size < p.K) all += ", " + part("group_size", p.group_size);
  return all + ", input " + torch::headeronly::toString(p.input) + ", output " + torch::headeronly::toString(p.output);
}

// The code of a weight that has one element a byte.
constexpr Code code_of(ScalarType dtype) {
  return dtype == ScalarType::Float8_e4m3fn ? Code::e4m3 : dtype == ScalarType::Float8_e5m2 ? Code::e5m2 : Code::int8;
}

// How kernels name a dtype. Bytes are exponents here, the codes of lut4 have their own name: element(Code).
constexpr Element element(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return Element::bf16;
    case ScalarType::Half: return Element::fp16;
    case ScalarType::Float: return Element::fp32;
    case ScalarType::Char: return Element::int8;
    case ScalarType::Float8_e4m3fn: return Element::e4m3;
    case ScalarType::Float8_e5m2: return Element::e5m2;
    case ScalarType::Int: return Element::int32;
    case ScalarType::Byte:
    case ScalarType::Float8_e8m0fnu: return Element::e8m0;
    default: throw std::runtime_error("aoext: no element for this dtype");
  }
}

}  // namespace aoext
