// Weight-only int4.
#include <array>

#include "cuda/choose_once.h"
#include "cuda/plan.h"

namespace aoext::cuda {

Element element(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::BFloat16: return Element::bf16;
    case ScalarType::Half: return Element::fp16;
    case ScalarType::Char: return Element::int8;
    case ScalarType::Float8_e4m3fn: return Element::e4m3;
    case ScalarType::Float8_e5m2: return Element::e5m2;
    case ScalarType::Int: return Element::int32;
    default: return Element::fp32;
  }
}

Int4Linear int4_linear(const LinearProblem& p) {
  Int4Linear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = element(p.output), raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
  return raw;
}

namespace {

// Fewer output columns than this, and rounding each dequantised weight to the input's type may show in a row of y.
constexpr int64_t kRoundedColumns = 32;
constexpr int64_t kRingRows = 2;      // up to which ring wins over decode, which does not serve all that ring does
constexpr int64_t kFewRows = 16;      // up to which the two win over mma and wgmma
constexpr int64_t kFewBatchRows = 8;  // and over batch, unless that comes out even over the GPU: then up to fewer rows
constexpr int64_t kEvenRows = 7, kEvenDepth = 8192, kEvenGroup = 128;
// Batch lays x out first, which short products feel. From so many rows on, where two blocks share each tile of so many rows of w
// and all run at once, wgmma wins up to so large a K.
constexpr int64_t kShortRows = 33, kShortTile = 64, kShortDepth = 4096;
constexpr int64_t kAnyRows = 16;  // up to which a kernel for any size wins over dequantising for cuBLAS
constexpr int64_t kMostAnyDepth = int64_t{1} << 31;
// Of both, which count bytes of scales, and of their rows of w, in 32 bits.
constexpr int64_t kMostFewRowsColumns = int64_t{1} << 29, kMostFewRowsDepth = int64_t{1} << 25;

// The configuration of a kernel for few rows, chosen once.
template <class Config, Choice<Config> (*kChoose)(const Int4Linear&, int, int, bool)>
Choice<Config> few_rows_choice(const Int4Linear& raw, const Device& device) {
  using Key = std::array<int64_t, 8>;
  const bool hopper = device.family == Family::sm90;
  const Key key = {raw.M,
                   raw.N,
                   raw.K,
                   raw.group_size,
                   static_cast<int64_t>(raw.type),
                   static_cast<int64_t>(raw.scale_type),
                   2 * device.multiprocessors + hopper,
                   device.shared_memory};
  return choose_once(key, [&] { return kChoose(raw, device.multiprocessors, device.shared_memory, hopper); });
}

// Ring or decode, whichever is said to be faster.
void set_few_rows(Plan& plan, const Int4Linear& raw, const Device& device) {
  const Choice<RingConfig> ring = few_rows_choice<RingConfig, choose_int4_ring>(raw, device);
  plan.algorithm = Algorithm::ring, plan.ring = ring.config;
  if (raw.M <= kRingRows || !int4_decode_takes(raw)) return;
  const Choice<DecodeConfig> decode = few_rows_choice<DecodeConfig, choose_int4_decode>(raw, device);
  if (decode.microseconds < ring.microseconds) plan.algorithm = Algorithm::decode, plan.decode = decode.config;
}

bool is_short(const Int4Linear& raw, const Device& device) {
  return raw.M >= kShortRows && raw.N >= kRoundedColumns && raw.K <= kShortDepth &&
         2 * ceil_div(raw.N, kShortTile) <= device.multiprocessors && int4_wgmma_takes(raw);
}

// Whether all of batch runs at once, on all multiprocessors but a few, and K is long.
bool is_even(const Int4Linear& raw, const BatchConfig& c, const Device& device) {
  const int64_t blocks = ceil_div(raw.N, kBatchRows / c.slices) * c.cluster;
  return raw.K >= kEvenDepth && raw.group_size >= kEvenGroup && c.slices > 1 && c.blocks == blocks &&
         blocks <= device.multiprocessors && 32 * blocks >= 31 * device.multiprocessors;
}

}  // namespace

Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned) {
  Plan plan;
  if (device.family == Family::none || p.K >= kMostAnyDepth) return plan;
  Int4Linear raw = int4_linear(p);
  // Fast kernels take scales of the input's type or float32.
  plan.scale = p.scale == p.output ? p.scale : ScalarType::Float;
  raw.scale_type = element(plan.scale);
  const bool regular = aligned && p.M > 0 && p.N > 0 && serves_int4_mma(raw);
  const bool hopper = device.family == Family::sm90, batches = hopper && regular && int4_batch_takes(raw);
  bool few = p.M <= (batches ? kFewBatchRows : kFewRows) && p.N < kMostFewRowsColumns && p.K < kMostFewRowsDepth;
  if (batches && (!few || p.M >= kEvenRows)) {
    plan.batch = choose_int4_batch(raw, device.multiprocessors, device.shared_memory);
    few = few && !is_even(raw, plan.batch, device);
  }
  if (regular && few) {
    set_few_rows(plan, raw, device);
  } else if (batches && !is_short(raw, device)) {
    plan.algorithm = Algorithm::batch;
  } else if (regular && p.N >= kRoundedColumns && hopper && int4_wgmma_takes(raw)) {
    plan.algorithm = Algorithm::wgmma;
    plan.wgmma = choose_int4_wgmma(raw, device.multiprocessors);
  } else if (regular && p.N >= kRoundedColumns) {
    plan.algorithm = Algorithm::mma;
    plan.mma = choose_int4_mma(raw, device.multiprocessors);
  } else if (regular || p.M <= kAnyRows) {
    plan.algorithm = Algorithm::any;
    plan.scale = p.scale;
  }
  return plan;
}

bool takes_one_pass(int64_t K, const Device& device) { return device.family != Family::none && K < kMostAnyDepth; }

std::string describe_sharing(int cluster, int ranges) {
  if (cluster > 1) return ", the rest of them over K by clusters of " + std::to_string(cluster);
  return ranges > 0 ? ", the rest of them over K by " + std::to_string(ranges) + " blocks" : "";
}

std::string describe(const WgmmaConfig& c) {
  return "tiles of " + std::to_string(c.rows) + " by " + std::to_string(c.tokens) + (c.turned ? ", turned" : "") +
         describe_sharing(c.cluster, c.ranges);
}

namespace {

template <class Config>
std::string describe_slices(const Config& c) {
  return ", K over " + std::to_string(c.slices) + " warps and " + std::to_string(c.cluster) + " blocks";
}

}  // namespace

std::string describe(const Plan& plan) {
  const auto text = [](auto v) { return std::to_string(v); };
  switch (plan.algorithm) {
    case Algorithm::generic: return "generic: ATen operators";
    case Algorithm::any: return "cuda: int4_any";
    case Algorithm::ring:
      return "cuda: int4_ring, tiles of " + text(plan.ring.tiles * plan.ring.warp_tiles * 16) + describe_slices(plan.ring);
    case Algorithm::decode:
      return "cuda: int4_decode, tiles of " + text(plan.decode.tiles * plan.decode.warp_tiles * 16) +
             describe_slices(plan.decode);
    case Algorithm::batch:
      return "cuda: int4_batch, tiles of " + text(kBatchRows / plan.batch.slices) + " by " + text(plan.batch.tokens) +
             ", K over " + text(plan.batch.slices) + " warpgroups" + describe_sharing(plan.batch.cluster, 0);
    case Algorithm::wgmma: return "cuda: int4_wgmma, " + describe(plan.wgmma);
    case Algorithm::mma:
      return "cuda: int4_mma, tiles of " + text(plan.mma.block_n) + " by " + text(plan.mma.block_m) + ", K over " +
             text(plan.mma.splits) + " blocks";
  }
  return "";
}

}  // namespace aoext::cuda
