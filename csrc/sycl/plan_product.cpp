// Which of oneDNN's products serves: weight-only int4, 8-bit weights with one scale a row, and weights that are dequantised to
// the input's type.
#include <vector>

#include "common/formats.h"
#include "sycl/plan.h"
#include "sycl/probes.h"
#include "sycl/product.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kMaxSummed = int64_t{1} << 33;  // elements of x whose group sums one launch takes

onednn::Matmul unscaled(const LinearProblem& p, onednn::Type weight, onednn::Type output) {
  onednn::Matmul m;
  m.M = p.M, m.N = p.N, m.K = p.K;
  m.input = onednn_type(p.input), m.weight = weight, m.output = output;
  return m;
}

onednn::Matmul int4_product(const LinearProblem& p, ScalarType scale) {
  onednn::Matmul m = unscaled(p, onednn::Type::s4, onednn_type(p.output));
  m.scale = onednn_type(scale);
  m.group_size = p.group_size;
  m.zero_points = true;
  m.addend = onednn::Type::f32;
  m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
  return m;
}

onednn::Matmul scaled_product(const LinearProblem& p, ScalarType scale) {
  onednn::Matmul m = unscaled(p, onednn_type(storage(p.code)), onednn_type(p.output));
  m.scale = onednn_type(scale);
  m.group_size = p.K;
  m.row_scales = p.input == storage(p.code);
  m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
  return m;
}

// Best first. The scales go in their own type, or in float32 where the engine wants that.
std::vector<onednn::Matmul> products(const LinearProblem& p) {
  const onednn::Matmul int8_sums = unscaled(p, onednn::Type::s8, onednn::Type::s32);
  if (p.output == ScalarType::Int) return {int8_sums};
  if (tiles_of(p).source == Source::planes_tile) {
    onednn::Matmul m = unscaled(p, onednn_type(p.input), onednn_type(p.output));
    m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
    return {m};
  }
  const auto with_scale = p.code == Code::int4 ? int4_product : scaled_product;
  std::vector<onednn::Matmul> all{with_scale(p, p.scale)};
  if (p.scale != ScalarType::Float) all.push_back(with_scale(p, ScalarType::Float));
  if (p.input == ScalarType::Char) all.push_back(int8_sums);  // then scale_rows
  return all;
}

bool takes(const LinearProblem& p, const Device& device) {
  if (is_high_precision(p.input) && p.N < kProductColumns) return false;
  if (p.input == ScalarType::Char && !device.exact_int8) return false;
  return p.code != Code::int4 || p.M * p.K <= kMaxSummed;
}

}  // namespace

bool has_product(const LinearProblem& p) {
  const Source source = tiles_of(p).source;
  if (source == Source::planes_tile) return is_high_precision(p.input) && p.N * p.K <= kMostDequantized;
  return source == Source::int4_tile || source == Source::rowwise_tile;
}

bool plan_product(Plan& plan, const LinearProblem& p, Asked& asked) {
  if (!has_product(p) || !takes(p, asked.device) || !runs(asked.device, Engine::lanes)) return false;
  for (const onednn::Matmul& m : products(p)) {
    if (asked.queue != nullptr && !onednn_has(*asked.queue, m)) continue;
    const bool dequantizes = tiles_of(p).source == Source::planes_tile;
    if (!asked.serves({Source::onednn, Engine::lanes, dequantizes ? kPlanesCode : p.code, p.input})) return false;
    // A probe of the product trusts what dequantises for it, which has a probe of its own.
    if (dequantizes && !is_probing() && !asked.serves({Source::dequantize_blocks})) return false;
    plan.algorithm = Algorithm::onednn;
    plan.product = m;
    return true;
  }
  return false;
}

}  // namespace aoext::xpu
