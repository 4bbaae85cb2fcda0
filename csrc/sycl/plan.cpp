#include "sycl/plan.h"

#include <algorithm>

namespace aoext::xpu {
namespace {

constexpr int kLanes = 16, kBlock = 128, kMaxSubGroups = 16;  // of kernels/split_k.h

const char* type_name(ScalarType t) {
  return t == ScalarType::BFloat16 ? "bf16" : t == ScalarType::Half ? "fp16" : "fp32";
}

// Enough sub-groups to keep the device busy, and no more than have a block of K each.
int split(const LinearProblem& p, const Device& device, int rows, int columns) {
  const int64_t work_groups = ((p.M + rows - 1) / rows) * ((p.N + columns - 1) / columns);
  const int64_t most = std::min<int64_t>({kMaxSubGroups, (p.K + kBlock - 1) / kBlock, int64_t(device.work_group) / kLanes});
  int sub_groups = 1;
  while (sub_groups * 2 <= most && sub_groups * work_groups < device.threads) sub_groups *= 2;
  return sub_groups;
}

}  // namespace

Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned) {
  if (!device.sub_group_16 || !device.fp16 || !aligned || p.group_size % 32 != 0) return {Algorithm::generic, {}, 0, 0, 0};
  const bool dpas = device.dpas && p.input != ScalarType::Float;
  const int rows = p.M == 1 ? 1 : p.M <= 4 ? 4 : 8, columns = kLanes;
  const int piece = p.group_size % 128 == 0 ? 128 : 32;
  Plan plan{Algorithm::tile, {dpas ? "int4_tile.dpas" : "int4_tile.lanes", "int4_tile_"}, rows, columns, 0};
  plan.kernel.name += std::string(type_name(p.input)) + "_m" + std::to_string(rows) + "_g" + std::to_string(piece);
  plan.sub_groups = split(p, device, rows, columns);
  return plan;
}

std::string describe(const Plan& plan, const Device&) {
  if (plan.algorithm == Algorithm::generic) return "generic: ATen operators";
  return std::string("xpu/") + plan.kernel.image + ": " + plan.kernel.name + ", K over " + std::to_string(plan.sub_groups) +
         " sub-groups";
}

}  // namespace aoext::xpu
