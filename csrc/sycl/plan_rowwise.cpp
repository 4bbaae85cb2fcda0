// 8-bit weights with one scale a row: weight-only, scaled and plain int8 products.
#include <string>
#include <vector>

#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

const char* name(ScalarType t) {
  return t == ScalarType::Char            ? "int8"
         : t == ScalarType::Float8_e4m3fn ? "e4m3"
         : t == ScalarType::Float8_e5m2   ? "e5m2"
                                          : type_name(t);
}

// Weight-only, oneDNN may round each dequantised weight to the input's type. Over fewer columns than this an output row
// may be so small beside its terms that the rounding shows.
constexpr int64_t kProductColumns = 32;

// Of weight and input, as images and families are named.
std::string type_names(const LinearProblem& p) { return std::string(name(p.weight)) + "_" + name(p.input); }

bool plan_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  const std::string image = "rowwise_tile." + variant + "_" + type_names(p);
  if (p.K % kStep != 0 || p.K > kMaxTileDepth || !serves(queue, image)) return false;
  plan.algorithm = Algorithm::tile;
  plan.rows = tile_rows(p.M, variant != "lanes");
  plan.columns = plan.rows >= 16 ? 2 * kLanes : kLanes;
  plan.sub_groups = tile_sub_groups(p, device_of(queue), plan.rows, plan.columns);
  plan.kernel = {image, "rowwise_tile_m" + std::to_string(plan.rows)};
  return true;
}

onednn::Matmul product(const LinearProblem& p) {
  onednn::Matmul m;
  m.M = p.M, m.N = p.N, m.K = p.K;
  m.input = onednn_type(p.input), m.weight = onednn_type(p.weight), m.output = onednn_type(p.output);
  return m;
}

onednn::Matmul scaled_product(const LinearProblem& p, ScalarType scale) {
  onednn::Matmul m = product(p);
  m.scale = onednn_type(scale);
  m.group_size = p.K;
  m.row_scales = p.input == p.weight;
  m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
  return m;
}

onednn::Matmul int8_sums(const LinearProblem& p) {
  onednn::Matmul m = product(p);
  m.output = onednn::Type::s32;
  return m;
}

bool plan_product(Plan& plan, const LinearProblem& p, sycl::queue& queue) {
  const Device& device = device_of(queue);
  if (p.input != p.weight && p.N < kProductColumns) return false;
  if (!device.sub_group_16 || !device.fp16 || !trusted(queue, "onednn." + type_names(p))) return false;
  std::vector<onednn::Matmul> products;
  if (p.output == ScalarType::Int) {
    products = {int8_sums(p)};
  } else {
    products = {scaled_product(p, p.scale)};
    if (p.scale != ScalarType::Float) products.push_back(scaled_product(p, ScalarType::Float));
    if (p.input == ScalarType::Char) products.push_back(int8_sums(p));  // then scale_rows
  }
  for (const onednn::Matmul& m : products) {
    if (!onednn_has(queue, m)) continue;
    plan.algorithm = Algorithm::onednn;
    plan.product = m;
    return true;
  }
  return false;
}

}  // namespace

Plan plan_rowwise(const LinearProblem& p, sycl::queue& queue, int alignment) {
  const Device& device = device_of(queue);
  Plan plan;
  const bool matrix = !device.matrix.empty() && p.input != ScalarType::Float;
  const auto tile = [&] {
    if (alignment % kTileAlignment != 0) return false;
    return (matrix && plan_tile(plan, p, queue, device.matrix)) || plan_tile(plan, p, queue, "lanes");
  };
  const auto product = [&] { return alignment % onednn::kAlignment == 0 && plan_product(plan, p, queue); };
  const bool found = p.M <= most_tile_rows(device, matrix) ? tile() || product() : product() || tile();
  if (!found && p.K < kMaxAnyDepth && serves(queue, "linear_any.lanes")) plan.algorithm = Algorithm::any;
  return plan;
}

}  // namespace aoext::xpu
