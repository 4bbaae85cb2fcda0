#include "cuda/plan_blocks.h"

#include "cuda/choose_once.h"
#include "cuda/fits.h"
#include "cuda/kernels/experts.h"

namespace aoext::cuda {
namespace {

constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over dequantising for cuBLAS
constexpr int64_t kFewRows = 16;  // that decode takes
// Fewer output columns than this, and rounding each weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 32;
constexpr int64_t kMostExpertRows = 512;  // of all experts, up to which each may be a product of its own

// The host knows the rows of all experts and not those of one. Generic, which waits for the device, is never chosen.
BlocksKernels choose_for_experts(const BlockLinear& raw, const Device& device) {
  using Decode = KernelOf<BlocksDecodeConfig>;
  using Fp4 = KernelOf<Fp4DecodeConfig>;
  using Wgmma = KernelOf<BlocksWgmmaConfig>;
  using Mma = KernelOf<BlocksMmaConfig>;
  const bool many = raw.N >= kRoundedColumns, few = raw.M <= kMostExpertRows;
  BlocksKernels best = BlocksAny{};
  double least = 1e30;
  const auto consider = [&](const auto& choice, double more) {
    if (choice.microseconds + more < least) best = choice.config, least = choice.microseconds + more;
  };
  if (few && many && Fp4::takes(raw))
    consider(Fp4::choose(raw, device), 0);
  else if (few && (many || blocks_decode_is_exact(raw)) && Decode::takes(raw))
    consider(Decode::choose(raw, device), 0);
  if (many && device.features.cover(Wgmma::kNeeds) && Wgmma::takes(raw))
    consider(longer(Wgmma::choose(raw, device), kTilesOfExperts), fits_of(device).between.finding_experts);
  else if (many && Mma::takes(raw))
    consider(Mma::choose(raw, device), 0);
  return best;
}

BlocksPlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  using Decode = KernelOf<BlocksDecodeConfig>;
  using Fp4 = KernelOf<Fp4DecodeConfig>;
  using Wgmma = KernelOf<BlocksWgmmaConfig>;
  using Mma = KernelOf<BlocksMmaConfig>;
  if (!takes_one_pass(p.K, device)) return {};
  if (p.subtracts_zero_point) return p.experts > 0 ? BlocksPlan{BlocksAny{}} : BlocksPlan{};
  const BlockLinear raw = block_linear(p);
  if (p.experts > 0) {
    if (p.M > 0 && p.N > 0 && aligned) return {choose_for_experts(raw, device)};
    return {BlocksAny{}};
  }
  if (p.M > 0 && p.N > 0 && aligned) {
    const bool many = p.N >= kRoundedColumns;
    if (p.M <= kFewRows && Fp4::takes(raw) && many) return {Fp4::choose(raw, device).config};
    if (p.M <= kFewRows && Decode::takes(raw) && (many || blocks_decode_is_exact(raw)))
      return {Decode::choose(raw, device).config};
    if (p.M > kFewRows && many && device.features.wgmma && Wgmma::takes(raw)) return {Wgmma::choose(raw, device).config};
    if (p.M > kFewRows && many && Mma::takes(raw)) return {Mma::choose(raw, device).config};
  }
  if (p.M > kAnyRows) return {};
  return {BlocksAny{}};
}

}  // namespace

BlockLinear block_linear(const LinearProblem& p) {
  BlockLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K;
  raw.type = element(p.input), raw.weight_type = element(p.code), raw.output = element(p.output);
  raw.bias_type = element(p.bias);
  raw.block_n = p.block_n, raw.block_k = p.group_size, raw.block_scale_type = element(p.scale);
  raw.experts = p.experts, raw.global_scales = p.global_scales;
  return raw;
}

BlocksPlan plan_blocks(const LinearProblem& p, const Device& device, bool aligned) {
  if (const Forced* const f = forced_in<BlocksKernels>(p.experts)) {
    const bool any = takes_one_pass(p.K, device) && (!p.subtracts_zero_point || p.experts > 0);
    const bool fast = any && !p.subtracts_zero_point && p.M > 0 && p.N > 0 && aligned;
    return {forced_kernel<BlocksKernels>(*f, text(p), block_linear(p), device, any, fast)};
  }
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

}  // namespace aoext::cuda
