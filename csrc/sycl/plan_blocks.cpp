// Weights that have a scale a block, and int4 by 8 bits.
#include <limits>

#include "sycl/plan.h"

namespace aoext::xpu {
namespace {

constexpr int64_t kMostColumns = std::numeric_limits<int>::max();  // whose number a kernel divides by block_n in 32 bits

bool is_scaled(const LinearProblem& p) { return p.input == storage(p.code); }

// Whether what shares a scale, of the weight and of an input of 8 bits, begins at multiples of so many k.
bool groups_fit(const LinearProblem& p, int64_t multiple) {
  return p.group_size % multiple == 0 && (!is_scaled(p) || p.input_group_size % multiple == 0);
}

// Whether the kernel for groups that are multiples of `group` serves; its image is <source>.<variant>.
bool fill_in(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& source, const std::string& variant,
             int64_t group) {
  const int rows = tile_rows(p.M, true);
  const KernelName kernel{source + "." + variant, source + "_m" + std::to_string(rows) + "_g" + std::to_string(group)};
  if (!serves(queue, kernel)) return false;
  plan.algorithm = Algorithm::tile;
  plan.kernel = kernel;
  plan.rows = rows;
  plan.columns = rows > 8 ? 2 * kLanes : kLanes;
  plan.sub_groups = tile_sub_groups(p, device_of(queue), plan.rows, plan.columns);
  return true;
}

bool plan_blocks_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  const bool table = p.code == Code::lut4;
  const int64_t shorter = table ? 16 : kStep, longer = table ? kStep : kBlock;
  if (p.K % kStep != 0 || p.K > kMaxTileDepth || !groups_fit(p, shorter) || p.N > kMostColumns) return false;
  if (table && p.N < kProductColumns) return false;
  const int64_t group = p.K % kBlock == 0 && groups_fit(p, longer) ? longer : shorter;
  const std::string types = table ? std::string("lut4_") + type_name(p.input) : type_names(storage(p.code), p.input);
  if (!fill_in(plan, p, queue, "blocks_tile", variant + "_" + types, group)) return false;
  plan.arranged = table && group == longer && plan.rows >= kArrangedRows;
  return true;
}

bool plan_scaled_int4_tile(Plan& plan, const LinearProblem& p, sycl::queue& queue, const std::string& variant) {
  if (p.group_size % kStep != 0 || p.K > kMaxTileDepth) return false;
  return fill_in(plan, p, queue, "int4_scaled_tile", variant + "_" + type_name(p.input),
                 p.group_size % kBlock == 0 ? kBlock : kStep);
}

// oneDNN has none of these products.
bool no_product(Plan& /*plan*/) { return false; }

}  // namespace

Plan plan_blocks(const LinearProblem& p, sycl::queue& queue, int alignment) {
  return choose(
      p, queue, alignment, [&](Plan& plan, const std::string& variant) { return plan_blocks_tile(plan, p, queue, variant); },
      no_product);
}

Plan plan_scaled_int4(const LinearProblem& p, sycl::queue& queue, int alignment) {
  return choose(
      p, queue, alignment, [&](Plan& plan, const std::string& variant) { return plan_scaled_int4_tile(plan, p, queue, variant); },
      no_product);
}

}  // namespace aoext::xpu
