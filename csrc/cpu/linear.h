// The ways in which a CPU multiplies by a quantised weight: Algorithm::values, dot and panel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/dispatcher.h"
#include "cpu/plan.h"
#include "cpu/weights.h"

namespace aoext::cpu {

constexpr int64_t kTile = 32;  // weight rows a thread takes at a time: a 64-byte line of 16-bit scales

inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Threads start to pay at about this many weights each.
inline int64_t grain(int64_t rows, int64_t K) { return std::max<int64_t>(1, (int64_t{1} << 15) / (rows * K)); }

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

  // Columns [first, first + count) of all rows, from a product that is finished.
  void copy(const Tensor& product, int64_t first) const {
    const int64_t bytes = product.size(1) * element_size;
    const char* const source = static_cast<const char*>(product.const_data_ptr());
    torch::stable::parallel_for(0, product.size(0), grain(1, product.size(1)), [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) std::memcpy(data + (m * N + first) * element_size, source + m * bytes, bytes);
    });
  }

  // Columns [first, first + count) of row m.
  void store(int64_t m, int64_t first, int64_t count, const float* acc, const float* row_scales) const {
    kernels().scale_row(element, acc, input_scales.empty() ? 1.0f : input_scales[m], row_scales,
                        bias.empty() ? nullptr : bias.data() + first, data + (m * N + first) * element_size, count);
  }
};

// Rows of x as float32, `ld` elements apart.
inline std::vector<float> float_rows(const LinearProblem& p, const Tensor& input, int64_t ld) {
  std::vector<float> x(p.M * ld);
  const Tensor rows = aten::contiguous(input);
  const int64_t row_bytes = p.K * static_cast<int64_t>(rows.element_size());
  for (int64_t m = 0; m < p.M; ++m)
    kernels().to_float(element(p.input), static_cast<const char*>(rows.const_data_ptr()) + m * row_bytes, &x[m * ld], p.K);
  return x;
}

// Multiplies and stores all of y: `product` multiplies kTileRows rows of w, from row i of a tile on, by all rows of x, with so
// many floats of scratch memory.
template <class Weight, class Product>
void multiply_tiles(const LinearProblem& p, const Weight& weight, const Output& output, int64_t scratch, Product&& product) {
  torch::stable::parallel_for(0, (p.N + kTile - 1) / kTile, grain(kTile, p.K), [&](int64_t begin, int64_t end) {
    std::vector<float> w(scratch), acc(p.M * kTile), sums(p.M * kTileRows);
    const auto tile_sums = reinterpret_cast<float (*)[kTileRows]>(sums.data());
    for (int64_t t = begin; t < end; ++t) {
      const int64_t first = t * kTile, count = std::min(kTile, p.N - first);
      const typename Weight::Tile tile(weight, first, count);
      for (int64_t i = 0; i < count; i += kTileRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kTileRows, count - i));
        std::fill(sums.begin(), sums.end(), 0.0f);
        product(tile, i, rows, w.data(), tile_sums);
        for (int64_t m = 0; m < p.M; ++m) std::copy(tile_sums[m], tile_sums[m] + kTileRows, &acc[m * kTile + i]);
      }
      for (int64_t m = 0; m < p.M; ++m) output.store(m, first, count, &acc[m * kTile], tile.row_scales());
    }
  });
}

template <class Weight>
void dot(const LinearProblem& p, const Tensor& input, const Weight& weight, const Output& output) {
  using Tile = typename Weight::Tile;
  const int64_t ld = padded(p.K);
  const std::vector<float> x = float_rows(p, input, ld);
  multiply_tiles(p, weight, output, kTileRows * ld,
                 [&](const Tile& tile, int64_t i, int rows, float* scratch, float (*sums)[kTileRows]) {
                   for (int r = 0; r < rows; ++r) tile.row(i + r, scratch + r * ld);
                   kernels().dot_f32(x.data(), ld, static_cast<int>(p.M), scratch, ld, ld, sums);
                 });
}

inline void dot_values(const LinearProblem& p, const Tensor& input, const RowwiseWeight& weight, const Output& output) {
  const int64_t ld = padded(p.K);
  const std::vector<float> x = float_rows(p, input, ld);
  multiply_tiles(
      p, weight, output, 0, [&](const RowwiseWeight::Tile& tile, int64_t i, int rows, float*, float (*sums)[kTileRows]) {
        kernels().dot_values(x.data(), ld, static_cast<int>(p.M), weight.value_element, tile.values(i), rows, p.K, sums);
      });
}

// Stores a product [M, count] of ATen's as columns [first, first + count).
inline void store_product(const Tensor& product, int64_t first, const float* row_scales, const Output& output) {
  const int64_t M = product.size(0), count = product.size(1), bytes = count * static_cast<int64_t>(product.element_size());
  const char* data = static_cast<const char*>(product.const_data_ptr());
  const Element from = element(product.scalar_type());
  torch::stable::parallel_for(0, M, grain(1, count), [&](int64_t begin, int64_t end) {
    std::vector<float> acc(count);
    for (int64_t m = begin; m < end; ++m) {
      kernels().to_float(from, data + m * bytes, acc.data(), count);
      output.store(m, first, count, acc.data(), row_scales);
    }
  });
}

// Rows that panels multiply, [M, columns] in plan.compute. ATen rounds a bfloat16 product before we see it;
// so that it is the only rounding, everything that the epilogue would do goes into the panel: row scales
// multiply the weights, and the bias is three more columns (its parts of 8 bits each) against ones.
struct PanelInput {
  static constexpr int64_t kBiasColumns = 32;  // of which three are used: rows stay aligned
  static constexpr int kBiasParts = 3;

  Tensor x;
  int64_t columns;

  PanelInput(const LinearProblem& p, const Plan& plan, const Tensor& input) {
    x = aten::to(aten::reshape(input, {p.M, p.K}), plan.compute);
    columns = p.K;
    if (plan.compute != ScalarType::BFloat16 || !p.has_bias) return;
    columns += kBiasColumns;
    const Tensor wide = aten::empty({p.M, columns}, plan.compute, input);
    aten::copy_(aten::narrow(wide, 1, 0, p.K), x);
    aten::copy_(aten::narrow(wide, 1, p.K, kBiasColumns), aten::scalar_like(1, plan.compute, input));
    x = wide;
  }
};

inline void store_bias_parts(float bias, char* out) {
  float parts[PanelInput::kBiasColumns] = {};
  for (int i = 0; i < PanelInput::kBiasParts; ++i) {
    uint16_t rounded;
    kernels().from_float(Element::bf16, &bias, &rounded, 1);
    kernels().to_float(Element::bf16, &rounded, &parts[i], 1);
    if (!std::isfinite(parts[i])) break;  // Inf − Inf would make it NaN
    bias -= parts[i];
  }
  kernels().from_float(Element::bf16, parts, out, PanelInput::kBiasColumns);
}

template <class Weight>
void panel(const LinearProblem& p, const Plan& plan, const Tensor& input, const Weight& weight, const Output& output) {
  const PanelInput in(p, plan, input);
  const bool folded = plan.compute == ScalarType::BFloat16;
  const Tensor buffer = aten::empty({plan.panel_rows, in.columns}, plan.compute, input);
  char* const out = static_cast<char*>(buffer.mutable_data_ptr());
  const int64_t size = static_cast<int64_t>(buffer.element_size());
  for (int64_t first = 0; first < p.N; first += plan.panel_rows) {
    const int64_t count = std::min(plan.panel_rows, p.N - first);
    std::vector<float> row_scales(count, 1.0f);
    torch::stable::parallel_for(0, (count + kTile - 1) / kTile, grain(kTile, p.K), [&](int64_t begin, int64_t end) {
      std::vector<float> row(p.K);
      for (int64_t i = begin * kTile; i < std::min(end * kTile, count); i += kTile) {
        const int64_t rows = std::min(kTile, count - i);
        const typename Weight::Tile tile(weight, first + i, rows);
        for (int64_t r = 0; r < rows; ++r) {
          char* const packed = out + (i + r) * in.columns * size;
          tile.row(r, row.data());
          if (folded) {
            kernels().scale_row(Element::bf16, row.data(), tile.row_scales()[r], nullptr, nullptr, packed, p.K);
            if (p.has_bias) store_bias_parts(output.bias[first + i + r], packed + p.K * size);
          } else {
            kernels().from_float(element(plan.compute), row.data(), packed, p.K);
            row_scales[i + r] = tile.row_scales()[r];
          }
        }
      }
    });
    const Tensor product = aten::mm(in.x, aten::transpose(aten::narrow(buffer, 0, 0, count)));
    if (folded) {
      output.copy(product, first);
    } else {
      store_product(product, first, row_scales.data(), output);
    }
  }
}

template <class Weight>
Tensor linear(const LinearProblem& p, const Plan& plan, const Tensor& input, const Weight& weight, const Tensor* input_scale,
              const OptionalTensor& bias) {
  const Tensor y = aten::empty(output_sizes(input, p.N), p.output, input);
  if (p.M == 0 || p.N == 0) return y;
  const Output output(p, y, input_scale, bias);
  if constexpr (std::is_same_v<Weight, RowwiseWeight>) {
    if (plan.algorithm == Algorithm::values) {
      dot_values(p, input, weight, output);
      return y;
    }
  }
  if (plan.algorithm == Algorithm::dot) {
    dot(p, input, weight, output);
  } else {
    panel(p, plan, input, weight, output);
  }
  return y;
}

}  // namespace aoext::cpu
