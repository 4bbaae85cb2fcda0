// Weight-only int4.
#include "sycl/plan.h"
#include "sycl/product.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kMaxSummed = int64_t{1} << 33;  // elements of x whose group sums one launch takes

onednn::Matmul int4_product(const LinearProblem& p, ScalarType scale) {
  onednn::Matmul m;
  m.M = p.M, m.N = p.N, m.K = p.K;
  m.input = m.output = onednn_type(p.input);
  m.weight = onednn::Type::s4;
  m.scale = onednn_type(scale);
  m.group_size = p.group_size;
  m.zero_points = true;
  m.addend = onednn::Type::f32;
  m.bias = p.has_bias ? onednn_type(p.bias) : onednn::Type::none;
  return m;
}

bool plan_int4_product(Plan& plan, const LinearProblem& p, sycl::queue& queue) {
  if (p.N < kProductColumns || p.M * p.K > kMaxSummed || !runs(device_of(queue), "int4_correction.lanes")) return false;
  // Scales in their own type, or in float32 where the engine wants that.
  for (const ScalarType scale : {p.scale, ScalarType::Float}) {
    plan.product = int4_product(p, scale);
    if (!onednn_has(queue, plan.product)) continue;
    if (!trusted(queue, product_family(p.input))) return false;
    plan.algorithm = Algorithm::onednn;
    return true;
  }
  return false;
}

bool plan_int4_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  const std::string type = type_name(p.input);
  const int rows = tile_rows(p.M, variant != "lanes");
  const KernelName kernel{"int4_tile." + variant + "_" + type,
                          "int4_tile_" + type + "_m" + std::to_string(rows) + (p.group_size % kBlock == 0 ? "_g128" : "_g32")};
  if (p.group_size % kStep != 0 || p.K > kMaxTileDepth || !serves(queue, kernel)) return false;
  plan.algorithm = Algorithm::tile;
  plan.kernel = kernel;
  plan.rows = rows;
  plan.columns = plan.rows >= kArrangedRows ? 2 * kLanes : kLanes;
  plan.arranged = plan.rows >= kArrangedRows;
  plan.sub_groups = tile_sub_groups(p, device_of(queue), plan.rows, plan.columns);
  return true;
}

}  // namespace

Plan plan_int4(const LinearProblem& p, sycl::queue& queue, int alignment) {
  return choose(
      p, queue, alignment, [&](Plan& plan, const std::string& variant) { return plan_int4_tile(plan, p, queue, variant); },
      [&](Plan& plan) { return plan_int4_product(plan, p, queue); });
}

}  // namespace aoext::xpu
