// The operands of a product in memory, all of them contiguous, and those of one expert among many.
#pragma once

#include <cstdint>

#include "common/formats.h"
#include "common/operands.h"
#include "common/sizes.h"

namespace aoext::cpu {

// Bytes of an element of a dtype that operands have.
constexpr int64_t size_of(ScalarType t) {
  return t == ScalarType::Float || t == ScalarType::Int ? 4 : t == ScalarType::BFloat16 || t == ScalarType::Half ? 2 : 1;
}

// Null where there is none, here and below.
struct WeightData {
  const char *values, *scale, *zero_point;
  const float *table, *global_scale;
};

struct Data {
  const char* input;
  const float* input_scale;
  WeightData weight;
  const char* bias;
  char* y;
};

template <class T = char>
const T* data_of(const Tensor* t) {
  return t == nullptr ? nullptr : static_cast<const T*>(t->const_data_ptr());
}

inline WeightData data_of(const Weight& w) {
  return {data_of(&w.values), data_of(&w.scale), data_of(w.zero_point), data_of<float>(w.table), data_of<float>(w.global_scale)};
}

// What the product `p` of one expert reads, whose rows of the input begin at `row`.
inline Data of_expert(const LinearProblem& p, const Data& all, int64_t expert, int64_t row) {
  const auto at = [](const auto* data, int64_t elements) { return data == nullptr ? nullptr : data + elements; };
  const int64_t groups = ceil_div(p.K, p.group_size);
  const int64_t scales = has_scales_inside(p.code) ? 1 : ceil_div(p.N, p.block_n) * groups;
  const int64_t zero_point = is_by_groups(p.code) ? size_of(p.scale) : 1;
  const WeightData& w = all.weight;
  return {all.input + row * p.K * size_of(p.input),
          at(all.input_scale, p.input_group_size == 0 ? 0 : row * ceil_div(p.K, p.input_group_size)),
          {w.values + expert * p.N * row_bytes(p.code, p.K), w.scale + expert * scales * size_of(p.scale),
           at(w.zero_point, expert * scales * zero_point), w.table, at(w.global_scale, p.global_scales > 1 ? expert : 0)},
          at(all.bias, expert * p.N * size_of(p.bias)),
          all.y + row * p.N * size_of(p.output)};
}

}  // namespace aoext::cpu
