#include "cuda/plan_tinygemm.h"

#include "cuda/choose_once.h"

namespace aoext::cuda {
TinygemmLinear tinygemm_linear(const LinearProblem& p) {
  TinygemmLinear linear{};
  linear.M = p.M, linear.N = p.N, linear.K = p.K, linear.group_size = p.group_size;
  linear.inner_k_tiles = static_cast<int>(p.inner_k_tiles);
  return linear;
}

namespace {

// Unpacking costs about as much as reading the weight twice; kernels for 32 rows of x took longer than that and
// bf16i4bf16_rowwise together.
TinygemmPlan choose(const LinearProblem& p, const Device& device) {
  using Direct = KernelOf<TinygemmConfig>;
  if (!takes_one_pass(p.K, device)) return {};
  const TinygemmLinear linear = tinygemm_linear(p);
  if (p.M == 0 || p.N == 0 || !Direct::takes(linear)) return {TinygemmUnpack{}};
  return {Direct::choose(linear, device).config};
}

}  // namespace

TinygemmPlan plan_tinygemm(const LinearProblem& p, const Device& device) {
  if (const Forced* const f = forced_in<TinygemmKernels>()) {
    const bool takes = takes_one_pass(p.K, device) && p.M > 0 && p.N > 0;
    return {forced_kernel<TinygemmKernels>(*f, text(p), tinygemm_linear(p), device, takes, takes)};
  }
  return choose_once(p, device, true, [&] { return choose(p, device); });
}

}  // namespace aoext::cuda
