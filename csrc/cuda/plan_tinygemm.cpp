#include "cuda/plan_tinygemm.h"

#include "cuda/choose_once.h"
#include "cuda/forced.h"

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

namespace {

TinygemmPlan choose(const LinearProblem& p, const Device& device) {
  if (!takes_one_pass(p.K, device)) return {};
  if (p.M > kDirectRows) return {TinygemmUnpack{}};
  return {choose_tinygemm_mm(tinygemm_linear(p), device)};
}

TinygemmPlan forced_plan(const Forced& f, const LinearProblem& p, const Device& device) {
  const bool takes = takes_one_pass(p.K, device) && p.M > 0 && p.N > 0;
  if (is<TinygemmConfig>(f)) {
    const TinygemmLinear linear = tinygemm_linear(p);
    return {forced_config<TinygemmConfig>(
        f, text(p), device, takes && p.M <= kDirectRows, [&] { return choose_tinygemm_mm(linear, device); },
        [&](const TinygemmConfig& c) { return tinygemm_mm_fits(linear, c, device); })};
  }
  if (is<Generic>(f)) return {};
  if (!takes) refuse_kernel(f, text(p), device);
  return {TinygemmUnpack{}};
}

}  // namespace

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, TinygemmKernel())) return forced_plan(*f, p, device);
  return choose_once(p, device, true, [&] { return choose(p, device); });
}

Explanation explain(const TinygemmPlan& plan) {
  return std::visit(
      Overloaded{[](const Generic&) { return generic_explanation(); },
                 [](const TinygemmUnpack&) { return explain_kernel("tinygemm_unpack, then as bf16i4bf16_rowwise"); },
                 [](const TinygemmConfig& c) {
                   return explain_kernel("tinygemm_mm")
                       .with("tile_m", c.block_m)
                       .with("blocks", c.blocks)
                       .with("warps", c.warps)
                       .with("phase_k", c.phase_chunks * 128);
                 }},
      plan.kernel);
}

}  // namespace aoext::cuda
