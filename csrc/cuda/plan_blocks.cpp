#include "cuda/plan_blocks.h"

#include "common/formats.h"
#include "cuda/choose_once.h"
#include "cuda/forced.h"

namespace aoext::cuda {
namespace {

constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over dequantising for cuBLAS
constexpr int64_t kFewRows = 16;  // that decode takes
// Fewer output columns than this, and rounding each weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 32;

BlocksPlan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const BlockLinear raw = block_linear(p);
  if (p.M > 0 && p.N > 0 && aligned) {
    const bool many = p.N >= kRoundedColumns;
    if (p.M <= kFewRows && fp4_decode_takes(raw) && many) return {choose_fp4_decode(raw, device)};
    if (p.M <= kFewRows && blocks_decode_takes(raw) && (many || blocks_decode_is_exact(raw)))
      return {choose_blocks_decode(raw, device)};
    if (p.M > kFewRows && many && device.is_hopper() && blocks_wgmma_takes(raw)) return {choose_blocks_wgmma(raw, device)};
    if (p.M > kFewRows && many && blocks_mma_takes(raw)) return {choose_blocks_mma(raw, device)};
  }
  if (p.M > kAnyRows) return {};
  return {BlocksAny{}};
}

BlocksPlan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  if (is<Generic>(f)) return {};
  const BlockLinear raw = block_linear(p);
  const bool served = takes_one_pass(p.K, device), serves = served && p.M > 0 && p.N > 0 && aligned;
  const auto plan = [&]<class Config>(bool takes, Config (*choose)(const BlockLinear&, const Device&),
                                      bool (*fits)(const BlockLinear&, const Config&)) -> BlocksPlan {
    return {forced_config<Config>(
        f, text(p), device, serves && takes, [&] { return choose(raw, device); }, [&](const Config& c) { return fits(raw, c); })};
  };
  if (is<BlocksDecodeConfig>(f)) return plan(blocks_decode_takes(raw), choose_blocks_decode, blocks_decode_fits);
  if (is<Fp4DecodeConfig>(f)) return plan(fp4_decode_takes(raw), choose_fp4_decode, fp4_decode_fits);
  if (is<BlocksWgmmaConfig>(f))
    return plan(device.is_hopper() && blocks_wgmma_takes(raw), choose_blocks_wgmma, blocks_wgmma_fits);
  if (is<BlocksMmaConfig>(f)) return plan(blocks_mma_takes(raw), choose_blocks_mma, blocks_mma_fits);
  if (!served) refuse_kernel(f, text(p), device);
  return {BlocksAny{}};
}

}  // namespace

bool is_rowwise(const LinearProblem& p) {
  return p.code != Code::lut4 && p.block_n == 1 && p.group_size == p.K && is_high_precision(p.scale);
}

BlockLinear block_linear(const LinearProblem& p) {
  BlockLinear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K;
  raw.type = element(p.input), raw.weight_type = element(storage(p.code)), raw.output = element(p.output);
  raw.bias_type = element(p.bias);
  raw.block_n = p.block_n, raw.block_k = p.group_size, raw.block_scale_type = element(p.scale);
  return raw;
}

BlocksPlan plan_blocks(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, BlocksKernel())) return forced_plan(*f, p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

Explanation explain(const BlocksPlan& plan) {
  const auto few_rows = [](const char* kernel, const RowwiseDecodeConfig& c) {
    return explain_kernel(kernel).with("tile_n", c.tiles * 16).with("k_splits", c.k_splits).with("cluster", c.cluster);
  };
  return std::visit(
      Overloaded{
          [](const Generic&) { return generic_explanation(); }, [](const BlocksAny&) { return explain_kernel("blocks_any"); },
          [&](const BlocksDecodeConfig& c) { return few_rows("blocks_decode", c); },
          [&](const Fp4DecodeConfig& c) { return few_rows("fp4_decode", c); },
          [](const BlocksWgmmaConfig& c) { return explain_wgmma("blocks_wgmma", c); },
          [](const BlocksMmaConfig& c) {
            return explain_kernel("blocks_mma").with("tile_n", c.block_n).with("tile_m", c.block_m).with("splits", c.splits);
          }},
      plan.kernel);
}

}  // namespace aoext::cuda
