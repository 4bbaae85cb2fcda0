#include "cuda/plan_tinygemm.h"

#include "cuda/plan.h"

namespace aoext::cuda {
namespace {

// Rows of x up to which the packed layout is read as it is. Unpacking costs about as much as reading the weight
// twice; kernels for 32 rows took longer than that and bf16i4bf16_rowwise together.
constexpr int64_t kDirectRows = kTinygemmMaxRows;

}  // namespace

TinygemmLinear tinygemm_linear(const Int4PackProblem& p) {
  TinygemmLinear linear{};
  linear.M = p.M, linear.N = p.N, linear.K = p.K, linear.group_size = p.group_size;
  linear.inner_k_tiles = static_cast<int>(p.inner_k_tiles);
  return linear;
}

TinygemmPlan plan_tinygemm(const Int4PackProblem& p, const Device& device) {
  TinygemmPlan plan;
  if (!takes_one_pass(p.K, device)) return plan;
  if (p.M > kDirectRows) {
    plan.algorithm = TinygemmAlgorithm::unpack;
    return plan;
  }
  plan.algorithm = TinygemmAlgorithm::direct;
  plan.config = tinygemm_config(tinygemm_linear(p), device.multiprocessors, device.shared_memory);
  plan.config.overlaps = device.family == Family::sm90;
  return plan;
}

std::string describe(const TinygemmPlan& plan) {
  switch (plan.algorithm) {
    case TinygemmAlgorithm::generic: return "generic: ATen operators";
    case TinygemmAlgorithm::unpack: return "cuda: unpacked to the plain layout, then as bf16i4bf16_rowwise";
    case TinygemmAlgorithm::direct: break;
  }
  const TinygemmConfig& c = plan.config;
  return "cuda: tinygemm, " + std::to_string(c.tokens) + " columns, " + std::to_string(c.blocks) + " blocks of " +
         std::to_string(c.warps) + " warps, " + std::to_string(c.phase_chunks * 128) + " of k at a time";
}

}  // namespace aoext::cuda
