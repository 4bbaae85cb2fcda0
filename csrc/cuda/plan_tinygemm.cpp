#include "cuda/plan_tinygemm.h"

#include "cuda/plan.h"

namespace aoext::cuda {
namespace {

// Rows of x up to which the packed layout is read as it is. Unpacking costs about as much as reading the weight
// twice; kernels for 32 rows took longer than that and bf16i4bf16_rowwise together.
constexpr int64_t kDirectRows = kTinygemmMaxRows;

}  // namespace

TinygemmLinear tinygemm_linear(const LinearProblem& p) {
  TinygemmLinear linear{};
  linear.M = p.M, linear.N = p.N, linear.K = p.K, linear.group_size = p.group_size;
  linear.inner_k_tiles = static_cast<int>(p.inner_k_tiles);
  return linear;
}

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device) {
  TinygemmPlan plan;
  if (!takes_one_pass(p.K, device)) return plan;
  if (p.M > kDirectRows) {
    plan.algorithm = TinygemmAlgorithm::unpack;
    return plan;
  }
  plan.algorithm = TinygemmAlgorithm::direct;
  plan.config = choose_tinygemm_mm(tinygemm_linear(p), device);
  return plan;
}

Explanation explain(const TinygemmPlan& plan) {
  const TinygemmConfig& c = plan.config;
  switch (plan.algorithm) {
    case TinygemmAlgorithm::generic: break;
    case TinygemmAlgorithm::unpack: return explain_kernel("tinygemm_unpack, then as bf16i4bf16_rowwise");
    case TinygemmAlgorithm::direct:
      return explain_kernel("tinygemm_mm")
          .with("tile_m", c.tokens)
          .with("blocks", c.blocks)
          .with("warps", c.warps)
          .with("phase_k", c.phase_chunks * 128);
  }
  return generic_explanation();
}

}  // namespace aoext::cuda
