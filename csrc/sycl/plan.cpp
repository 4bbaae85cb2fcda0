#include "sycl/plan.h"

#include <algorithm>

#include "sycl/device.h"
#include "sycl/product.h"
#include "sycl/self_check.h"

namespace aoext::xpu {
namespace {

// oneDNN rounds each dequantised weight to the input's type. Over fewer columns than this an output row may be so
// small beside its terms that the rounding shows.
constexpr int64_t kProductColumns = 32;

constexpr int64_t kMaxSummed = int64_t{1} << 33;  // elements of x whose group sums one launch takes

}  // namespace

int alignment_of(std::initializer_list<const Tensor*> tensors) {
  int alignment = onednn::kAlignment;
  for (const Tensor* t : tensors)
    while (reinterpret_cast<uintptr_t>(t->const_data_ptr()) % alignment != 0) alignment /= 2;
  return alignment;
}

bool serves(sycl::queue& queue, const std::string& image) {
  const Device& device = device_of(queue);
  return runs(device, image) && trusted(queue, image);
}

int tile_sub_groups(const LinearProblem& p, const Device& device, int rows, int columns) {
  const int64_t work_groups = ((p.M + rows - 1) / rows) * ((p.N + columns - 1) / columns);
  const int64_t most = std::min<int64_t>({kMaxSubGroups, (p.K + kBlock - 1) / kBlock, int64_t(device.work_group) / kLanes});
  int sub_groups = 1;
  while (sub_groups * 2 <= most && sub_groups * work_groups < device.threads) sub_groups *= 2;
  return sub_groups;
}

int tile_rows(int64_t M, bool matrix) { return M == 1 ? 1 : M <= 4 ? 4 : M <= 8 || !matrix ? 8 : M <= 16 ? 16 : 32; }

sycl::nd_range<2> tile_range(const Plan& plan, const LinearProblem& p) {
  const auto parts = [](int64_t n, int size) { return static_cast<size_t>((n + size - 1) / size); };
  const size_t width = static_cast<size_t>(plan.sub_groups) * kLanes;
  return {{parts(p.M, plan.rows), parts(p.N, plan.columns) * width}, {1, width}};
}

int64_t most_tile_rows(const Device& device, bool matrix) { return matrix ? 64 : device.gpu ? 8 : 1; }

const char* type_name(ScalarType t) { return t == ScalarType::BFloat16 ? "bf16" : t == ScalarType::Half ? "fp16" : "fp32"; }

namespace {

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
  if (p.N < kProductColumns || p.M * p.K > kMaxSummed || !serves(queue, "int4_correction.lanes") ||
      !trusted(queue, std::string("onednn.int4.") + type_name(p.input)))
    return false;
  // Scales in their own type, or in float32 where the engine wants that.
  for (const ScalarType scale : {p.scale, ScalarType::Float}) {
    plan.product = int4_product(p, scale);
    if (!onednn_has(queue, plan.product)) continue;
    plan.algorithm = Algorithm::onednn;
    return true;
  }
  return false;
}

bool plan_int4_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  const std::string image = "int4_tile." + variant + "_" + type_name(p.input);
  const bool matrix = variant != "lanes";
  if (p.group_size % kStep != 0 || p.K > kMaxTileDepth || !serves(queue, image)) return false;
  plan.algorithm = Algorithm::tile;
  plan.rows = tile_rows(p.M, matrix);
  plan.columns = plan.rows >= kArrangedRows ? 2 * kLanes : kLanes;
  plan.sub_groups = tile_sub_groups(p, device_of(queue), plan.rows, plan.columns);
  plan.kernel = {image, std::string("int4_tile_") + type_name(p.input) + "_m" + std::to_string(plan.rows) +
                            (p.group_size % kBlock == 0 ? "_g128" : "_g32")};
  return true;
}

}  // namespace

Plan plan_int4(const LinearProblem& p, sycl::queue& queue, int alignment) {
  const Device& device = device_of(queue);
  Plan plan;
  const bool matrix = !device.matrix.empty() && p.input != ScalarType::Float;
  const bool can_tile = alignment % kTileAlignment == 0;
  const auto tile = [&] {
    return can_tile && ((matrix && plan_int4_tile(plan, p, queue, device.matrix)) || plan_int4_tile(plan, p, queue, "lanes"));
  };
  const auto product = [&] { return alignment % onednn::kAlignment == 0 && plan_int4_product(plan, p, queue); };
  const bool found = p.M <= most_tile_rows(device, matrix) ? tile() || product() : product() || tile();
  if (!found && p.K < kMaxAnyDepth && serves(queue, "linear_any.lanes")) plan.algorithm = Algorithm::any;
  return plan;
}

std::string describe(const Plan& plan, sycl::queue& queue) {
  switch (plan.algorithm) {
    case Algorithm::generic: return "generic: ATen operators";
    case Algorithm::any: return "xpu: linear_any";
    case Algorithm::onednn: return "xpu: oneDNN, " + onednn::implementation(queue, plan.product);
    case Algorithm::tile:
      return "xpu: " + plan.kernel.image + ", " + plan.kernel.name + ", K over " + std::to_string(plan.sub_groups) +
             " sub-groups";
  }
  return "";
}

}  // namespace aoext::xpu
