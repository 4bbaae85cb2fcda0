#include <optional>

#include "cuda/choose_once.h"
#include "cuda/fits.h"
#include "cuda/plan.h"

namespace aoext::cuda {

Int4Linear int4_linear(const LinearProblem& p) {
  Int4Linear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = raw.code = element(p.output), raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
  raw.experts = p.experts;
  return raw;
}

Int4Linear int4_linear(const LinearProblem& p, ScalarType scale) {
  Int4Linear raw = int4_linear(p);
  raw.scale_type = element(scale);
  return raw;
}

namespace {

// Fewer output columns than this, and rounding each dequantised weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 32;
constexpr int64_t kRingRows = 2;      // up to which ring wins over decode, which does not serve all that ring does
constexpr int64_t kFewRows = 16;      // up to which the two win over mma and wgmma
constexpr int64_t kFewBatchRows = 8;  // and over batch, unless that comes out even over the GPU: then up to fewer rows
constexpr int64_t kEvenRows = 7, kEvenDepth = 8192, kEvenGroup = 128;
constexpr int64_t kModelledGroup = 128;  // from which on models choose between batch and wgmma; below it batch serves
constexpr int64_t kAnyRows = 16;         // up to which a kernel for any size wins over dequantising for cuBLAS
constexpr int64_t kMostAnyDepth = int64_t{1} << 31;
constexpr int64_t kMostExpertRows = 512;  // of all experts, up to which each may be a product of its own

// Ring or decode, whichever is said to be faster.
Int4Kernels few_rows(const Int4Linear& raw, const Device& device) {
  const auto ring = KernelOf<RingConfig>::choose(raw, device);
  if (raw.M <= kRingRows || !KernelOf<DecodeConfig>::takes(raw)) return ring.config;
  const auto decode = KernelOf<DecodeConfig>::choose(raw, device);
  if (decode.microseconds < ring.microseconds) return decode.config;
  return ring.config;
}

// Whether all of batch runs at once, on all multiprocessors but a few, and K is long.
bool is_even(const Int4Linear& raw, const BatchConfig& c, const Device& device) {
  const int64_t blocks = ceil_div(raw.N, kBatchRows / c.k_splits) * c.cluster;
  return raw.K >= kEvenDepth && raw.group_size >= kEvenGroup && c.k_splits > 1 && c.blocks == blocks &&
         blocks <= device.multiprocessors && 32 * blocks >= 31 * device.multiprocessors;
}

// Batch or wgmma; nothing where neither takes the problem.
std::optional<Int4Kernels> engine(const Int4Linear& raw, const Device& device) {
  Choice<BatchConfig> batch;
  Choice<Int4WgmmaConfig> tiles;
  if (KernelOf<BatchConfig>::takes(raw)) batch = KernelOf<BatchConfig>::choose(raw, device);
  const bool modelled = batch.config.block_m == 0 || raw.group_size >= kModelledGroup;
  if (modelled && raw.N >= kRoundedColumns && KernelOf<Int4WgmmaConfig>::takes(raw))
    tiles = KernelOf<Int4WgmmaConfig>::choose(raw, device);
  if (batch.config.block_m == 0 && tiles.config.block_m == 0) return std::nullopt;
  if (batch.microseconds <= tiles.microseconds) return batch.config;
  return tiles.config;
}

// What fast kernels take of a problem.
struct Regular {
  ScalarType scale;  // of the input's type or float32
  Int4Linear raw;
  bool serves;

  Regular(const LinearProblem& p, const Device& device, bool aligned)
      : scale(p.scale == p.output ? p.scale : ScalarType::Float), raw(int4_linear(p, scale)) {
    const bool some = takes_one_pass(p.K, device) && aligned && p.M > 0 && p.N > 0;
    serves = some && (p.experts > 0 || KernelOf<MmaConfig>::takes(raw));
  }
};

Int4Plan choose(const LinearProblem& p, const Device& device, const Regular& regular) {
  const Int4Linear& raw = regular.raw;
  const bool batches = regular.serves && device.features.wgmma && KernelOf<BatchConfig>::takes(raw);
  bool few = regular.serves && p.M <= (batches ? kFewBatchRows : kFewRows) && KernelOf<RingConfig>::takes(raw);
  if (batches && few && p.M >= kEvenRows) few = !is_even(raw, KernelOf<BatchConfig>::choose(raw, device).config, device);
  if (few) return {few_rows(raw, device), regular.scale};
  if (regular.serves && device.features.wgmma)
    if (const auto kernel = engine(raw, device)) return {*kernel, regular.scale};
  if (regular.serves && p.N >= kRoundedColumns) return {KernelOf<MmaConfig>::choose(raw, device).config, regular.scale};
  if (regular.serves || p.M <= kAnyRows) return {Int4Any{}, p.scale};
  return {Generic{}, regular.scale};
}

// The host knows the rows of all experts and not those of one. Generic, which waits for the device, is never chosen.
Int4Plan choose_for_experts(const LinearProblem& p, const Device& device, const Regular& regular) {
  using Ring = KernelOf<GroupedRingConfig>;
  using Wgmma = KernelOf<GroupedWgmmaConfig>;
  const Int4Linear& raw = regular.raw;
  Choice<GroupedRingConfig> ring;
  Choice<GroupedWgmmaConfig> tiles;
  if (regular.serves && p.M <= kMostExpertRows && Ring::takes(raw)) ring = Ring::choose(raw, device);
  if (regular.serves && device.features.cover(Wgmma::kNeeds) && Wgmma::takes(raw)) tiles = Wgmma::choose(raw, device);
  if (ring.config.blocks == 0 && tiles.config.blocks == 0) return {Int4Any{}, p.scale};
  if (ring.microseconds < tiles.microseconds + fits_of(device).between.finding_experts) return {ring.config, regular.scale};
  return {tiles.config, regular.scale};
}

Int4Plan plan_now(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const Regular regular(p, device, aligned);
  return p.experts > 0 ? choose_for_experts(p, device, regular) : choose(p, device, regular);
}

}  // namespace

Int4Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned) {
  if (const Forced* const f = forced_in<Int4Kernels>(p.experts)) {
    const Regular regular(p, device, aligned);
    const auto kernel = forced_kernel<Int4Kernels>(*f, text(p), regular.raw, device, takes_one_pass(p.K, device), regular.serves);
    if (is_generic(kernel)) return {};
    return {kernel, std::holds_alternative<Int4Any>(kernel) ? p.scale : regular.scale};
  }
  return choose_once(p, device, aligned, [&] { return plan_now(p, device, aligned); });
}

bool takes_one_pass(int64_t K, const Device& device) { return device.has_kernels && K < kMostAnyDepth; }

std::string text(const Int4Plan& plan) { return text(plan.kernel) + " | scale=" + torch::headeronly::toString(plan.scale); }

}  // namespace aoext::cuda
