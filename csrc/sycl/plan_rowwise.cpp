// 8-bit weights with one scale a row: weight-only, scaled and plain int8 products.
#include <string>
#include <vector>

#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

bool plan_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  const int rows = tile_rows(p.M, variant != "lanes");
  const KernelName kernel{"rowwise_tile." + variant + "_" + type_names(storage(p.code), p.input),
                          "rowwise_tile_m" + std::to_string(rows)};
  if (p.K % kStep != 0 || p.K > kMaxTileDepth || !serves(queue, kernel)) return false;
  plan.algorithm = Algorithm::tile;
  plan.kernel = kernel;
  plan.rows = rows;
  plan.columns = plan.rows > 8 ? 2 * kLanes : kLanes;
  plan.sub_groups = tile_sub_groups(p, device_of(queue), plan.rows, plan.columns);
  return true;
}

onednn::Matmul product(const LinearProblem& p) {
  onednn::Matmul m;
  m.M = p.M, m.N = p.N, m.K = p.K;
  m.input = onednn_type(p.input), m.weight = onednn_type(storage(p.code)), m.output = onednn_type(p.output);
  return m;
}

onednn::Matmul scaled_product(const LinearProblem& p, ScalarType scale) {
  onednn::Matmul m = product(p);
  m.scale = onednn_type(scale);
  m.group_size = p.K;
  m.row_scales = p.input == storage(p.code);
  m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
  return m;
}

onednn::Matmul int8_sums(const LinearProblem& p) {
  onednn::Matmul m = product(p);
  m.output = onednn::Type::s32;
  return m;
}

bool plan_product(Plan& plan, const LinearProblem& p, sycl::queue& queue) {
  const bool int8 = p.input == ScalarType::Char;
  if ((int8 && !device_of(queue).exact_int8) || (p.input != storage(p.code) && p.N < kProductColumns) ||
      !runs(device_of(queue), "scale_rows.lanes"))
    return false;
  std::vector<onednn::Matmul> products;
  if (p.output == ScalarType::Int) {
    products = {int8_sums(p)};
  } else {
    products = {scaled_product(p, p.scale)};
    if (p.scale != ScalarType::Float) products.push_back(scaled_product(p, ScalarType::Float));
    if (int8) products.push_back(int8_sums(p));  // then scale_rows
  }
  for (const onednn::Matmul& m : products) {
    if (!onednn_has(queue, m)) continue;
    if (!trusted(queue, product_family(storage(p.code), p.input))) return false;
    plan.algorithm = Algorithm::onednn;
    plan.product = m;
    return true;
  }
  return false;
}

}  // namespace

Plan plan_rowwise(const LinearProblem& p, sycl::queue& queue, int alignment) {
  return choose(
      p, queue, alignment, [&](Plan& plan, const std::string& variant) { return plan_tile(plan, p, queue, variant); },
      [&](Plan& plan) { return plan_product(plan, p, queue); });
}

}  // namespace aoext::xpu
