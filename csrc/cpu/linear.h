// The ways in which a CPU multiplies by a quantised weight: Algorithm::planes, fine_planes, plane_tiles, nibbles,
// values, tiles, limb_tiles and scaled_tiles.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "common/dispatcher.h"
#include "cpu/plan.h"
#include "cpu/tile_product.h"

namespace aoext::cpu {

// Where results go: y[m, n] = (acc · input_scales[m]) · row_scale[n] + bias[n], rounded once.
struct Output {
  char* data;
  Element element;
  int64_t element_size, N;
  std::vector<float> input_scales;  // empty: ones
  std::vector<float> bias;          // empty: none

  Output(const LinearProblem& p, const Tensor& y, const Tensor* input_scale, const OptionalTensor& bias_)
      : data(static_cast<char*>(y.mutable_data_ptr())),
        element(cpu::element(p.output)),
        element_size(static_cast<int64_t>(y.element_size())),
        N(p.N) {
    if (input_scale != nullptr) input_scales = floats(aten::contiguous(*input_scale));
    if (bias_) bias = floats(aten::contiguous(*bias_));
  }

  // Columns [first, first + count) of row m.
  void store(int64_t m, int64_t first, int64_t count, const float* acc, const float* row_scales) const {
    kernels().scale_row(element, acc, input_scales.empty() ? 1.0f : input_scales[m], row_scales,
                        bias.empty() ? nullptr : bias.data() + first, data + (m * N + first) * element_size, count);
  }
};

// f(m, row) for each row of x.
template <class F>
void each_input_row(const LinearProblem& p, const Tensor& input, const F& f) {
  const Tensor rows = aten::contiguous(input);
  const int64_t row_bytes = p.K * static_cast<int64_t>(rows.element_size());
  for (int64_t m = 0; m < p.M; ++m) f(m, static_cast<const char*>(rows.const_data_ptr()) + m * row_bytes);
}

// Few rows of x, those that `order` names, or all: `product` brings the tile to `count` rows of weights from `first` on and
// multiplies them.
template <class Weight, class Product>
void multiply_few(const LinearProblem& p, const Weight& weight, const Output& output, const Product& product,
                  const std::vector<int64_t>& order = {}) {
  const int64_t M = order.empty() ? p.M : static_cast<int64_t>(order.size());
  torch::stable::parallel_for(0, ceil_div(p.N, kTile), grain(kTile, p.K), [&](int64_t begin, int64_t end) {
    typename Weight::Tile tile(weight);
    std::vector<float> sums(M * kTile);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kTile, count = std::min<int64_t>(kTile, p.N - first);
      product(tile, first, count, reinterpret_cast<float (*)[kTile]>(sums.data()));
      for (int64_t m = 0; m < M; ++m)
        output.store(order.empty() ? m : order[m], first, count, &sums[m * kTile], tile.row_scales());
    }
  });
}

// Algorithm::tiles, limb_tiles and scaled_tiles, of floats. Rows of x are those that `order` names, or all.
template <class Weight>
void multiply_tiles(const Plan& plan, const InputRows& x, const Weight& weight, const Output& output,
                    const std::vector<int64_t>& order = {}) {
  const Kernels& k = kernels();
  const Tiles* const tiles = plan.algorithm == Algorithm::limb_tiles ? (Weight::kInt4 ? k.limbs_int4 : k.limbs)
                             : plan.compute == ScalarType::Float     ? k.f32
                             : plan.algorithm == Algorithm::tiles    ? (Weight::kInt4 ? k.bf16_int4 : k.bf16)
                                                                     : k.bf16;
  tile_product<float>(*tiles, x, output.N, weight,
                      [&](int64_t m, int64_t first, int64_t count, const float* sums, const float* row_scales) {
                        output.store(order.empty() ? m : order[m], first, count, sums, row_scales);
                      });
}

// Algorithm::nibbles, and planes for those rows of x that allow it: each row by itself, so that none changes another's result.
inline void multiply_int4(const LinearProblem& p, const Plan& plan, const Tensor& input, const Int4Weight& weight,
                          const Output& output) {
  const int64_t ld = padded(p.K), groups = p.K / p.group_size;
  const Planes* const planes = plan.algorithm == Algorithm::planes        ? kernels().planes
                               : plan.algorithm == Algorithm::fine_planes ? kernels().fine_planes
                               : plan.algorithm == Algorithm::plane_tiles ? kernels().plane_tiles
                                                                          : nullptr;
  const int64_t row_bytes = planes != nullptr ? planes->bytes * ld : 0;
  std::vector<float> rows(p.M * p.K);
  each_input_row(p, input, [&](int64_t m, const void* row) { kernels().to_float(element(p.input), row, &rows[m * p.K], p.K); });
  std::vector<int64_t> order, others;
  const Scratch fixed(p.M * row_bytes);
  std::memset(fixed + 0, 0, p.M * row_bytes);
  std::vector<float> scales(p.M * groups), fixed_sums(p.M * groups), group_sums(p.M * groups);
  const auto fixed_row = [&](int64_t i) { return reinterpret_cast<int8_t*>(fixed + i * row_bytes); };
  for (int64_t m = 0; m < p.M; ++m) {
    const int64_t i = static_cast<int64_t>(order.size()), g = i * groups;
    const bool allowed = planes != nullptr && planes->arrange(&rows[m * p.K], p.K, p.group_size, fixed_row(i), &scales[g],
                                                              &fixed_sums[g], &group_sums[g]);
    (allowed ? order : others).push_back(m);
  }
  const int64_t in_planes = static_cast<int64_t>(order.size());
  if (const Plan floats = plan_int4_floats(p); !others.empty() && floats.algorithm != Algorithm::nibbles) {
    std::vector<float> x;
    for (const int64_t m : others) x.insert(x.end(), rows.begin() + m * p.K, rows.begin() + (m + 1) * p.K);
    multiply_tiles(floats, {x.data(), Element::f32, sizeof(float), p.M - in_planes, p.K}, weight, output, others);
    others.clear();
    if (in_planes == 0) return;
  }
  const int64_t rest = static_cast<int64_t>(others.size());
  std::vector<float> x(rest * ld);
  for (int64_t i = 0; i < rest; ++i)
    kernels().arrange_int4(&rows[others[i] * p.K], p.K, p.group_size, &x[i * ld], &group_sums[(in_planes + i) * groups]);
  order.insert(order.end(), others.begin(), others.end());
  const int8_t* x_planes = fixed_row(0);
  std::optional<Scratch> joined;
  if (in_planes > 0 && planes->join != nullptr) {
    joined.emplace(planes->joined_bytes(in_planes, p.K, p.group_size));
    planes->join(x_planes, row_bytes, scales.data(), in_planes, p.K, p.group_size, *joined + 0);
    x_planes = reinterpret_cast<const int8_t*>(*joined + 0);
  }
  const GroupsOfX of_x{scales.data(), fixed_sums.data(), group_sums.data()};
  multiply_few(
      p, weight, output,
      [&](Int4Weight::Tile& tile, int64_t first, int64_t count, float (*sums)[kTile]) {
        if (in_planes > 0 && planes->dot != nullptr)
          planes->dot(x_planes, row_bytes, of_x, in_planes, tile.in_whole_vectors(first, count), count, p.K, sums);
        if (in_planes > 0 && planes->dot == nullptr)
          tile.dot_staged(*planes, x_planes, row_bytes, of_x, in_planes, first, count, sums);
        if (rest == 0) return;
        tile.move(first, count, 0, p.K);
        kernels().dot_int4(x.data(), ld, &group_sums[in_planes * groups], rest, tile.int4(0), count, p.K, sums + in_planes);
      },
      order);
}

// Algorithm::values.
inline void multiply_values(const LinearProblem& p, const Plan& plan, const Tensor& input, const RowwiseWeight& weight,
                            const Output& output) {
  const Values8& values = plan.compute == ScalarType::BFloat16 ? *kernels().values_bf16 : *kernels().values_f32;
  const int64_t ld = padded(p.K), bytes = p.M * ld * values.operand_bytes;
  const Scratch x(bytes);
  std::memset(x + 0, 0, bytes);
  each_input_row(
      p, input, [&](int64_t m, const void* row) { values.input(element(p.input), row, p.K, x + m * ld * values.operand_bytes); });
  multiply_few(p, weight, output, [&](RowwiseWeight::Tile& tile, int64_t first, int64_t count, float (*sums)[kTile]) {
    tile.move(first, count, 0, p.K);
    values.dot(x + 0, ld, p.M, weight.value_element, tile.values(0), count, p.K, sums);
  });
}

template <class Weight>
Tensor linear(const LinearProblem& p, const Plan& plan, const Tensor& input, const Weight& weight, const Tensor* input_scale,
              const OptionalTensor& bias) {
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Output output(p, y, input_scale, bias);
  if (plan.algorithm == Algorithm::tiles || plan.algorithm == Algorithm::limb_tiles ||
      plan.algorithm == Algorithm::scaled_tiles) {
    const Tensor x = aten::contiguous(input);
    multiply_tiles(plan, input_rows(p, x), weight, output);
  } else if constexpr (std::is_same_v<Weight, RowwiseWeight>) {
    multiply_values(p, plan, input, weight, output);
  } else if constexpr (std::is_same_v<Weight, Int4Weight>) {
    multiply_int4(p, plan, input, weight, output);
  }
  return y;
}

}  // namespace aoext::cpu
