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
constexpr int64_t kModelledGroup = 128;  // from which on models choose between batch and wgmma; below it batch serves
constexpr int64_t kAnyRows = 16;         // up to which a kernel for any size wins over dequantising for cuBLAS
constexpr int64_t kMostAnyDepth = int64_t{1} << 31;
// Of both, which count bytes of scales, and of their rows of w, in 32 bits.
constexpr int64_t kMostFewRowsColumns = int64_t{1} << 29, kMostFewRowsDepth = int64_t{1} << 25;

template <class Choose>
auto chosen(const Int4Linear& raw, const Device& device, Choose&& choose) {
  const std::array<int64_t, 8> key = {raw.M,
                                      raw.N,
                                      raw.K,
                                      raw.group_size,
                                      static_cast<int64_t>(raw.type),
                                      static_cast<int64_t>(raw.scale_type),
                                      2 * device.multiprocessors + device.is_hopper(),
                                      device.shared_memory};
  return choose_once(raw.M, key, choose);
}

// Ring or decode, whichever is said to be faster.
void set_few_rows(Plan& plan, const Int4Linear& raw, const Device& device) {
  const auto ring = chosen(raw, device, [&] { return choose_int4_ring(raw, device); });
  plan.algorithm = Algorithm::ring, plan.ring = ring.config;
  if (raw.M <= kRingRows || !int4_decode_takes(raw)) return;
  const auto decode = chosen(raw, device, [&] { return choose_int4_decode(raw, device); });
  if (decode.microseconds < ring.microseconds) plan.algorithm = Algorithm::decode, plan.decode = decode.config;
}

Choice<BatchConfig> batch_of(const Int4Linear& raw, const Device& device) {
  return chosen(raw, device, [&] { return choose_int4_batch(raw, device); });
}

// Whether all of batch runs at once, on all multiprocessors but a few, and K is long.
bool is_even(const Int4Linear& raw, const BatchConfig& c, const Device& device) {
  const int64_t blocks = ceil_div(raw.N, kBatchRows / c.slices) * c.cluster;
  return raw.K >= kEvenDepth && raw.group_size >= kEvenGroup && c.slices > 1 && c.blocks == blocks &&
         blocks <= device.multiprocessors && 32 * blocks >= 31 * device.multiprocessors;
}

// Batch or wgmma, which serve Hopper; false where neither takes the problem.
bool set_engine(Plan& plan, const Int4Linear& raw, const Device& device) {
  Choice<BatchConfig> batch;
  Choice<WgmmaConfig> tiles;
  if (int4_batch_takes(raw)) batch = batch_of(raw, device);
  const bool modelled = batch.config.tokens == 0 || raw.group_size >= kModelledGroup;
  if (modelled && raw.N >= kRoundedColumns && int4_wgmma_takes(raw))
    tiles = chosen(raw, device, [&] { return choose_int4_wgmma(raw, device); });
  if (batch.config.tokens == 0 && tiles.config.tokens == 0) return false;
  const bool batches = batch.microseconds <= tiles.microseconds;
  plan.algorithm = batches ? Algorithm::batch : Algorithm::wgmma;
  plan.batch = batch.config, plan.wgmma = tiles.config;
  return true;
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
  const bool batches = regular && device.is_hopper() && int4_batch_takes(raw);
  bool few = p.M <= (batches ? kFewBatchRows : kFewRows) && p.N < kMostFewRowsColumns && p.K < kMostFewRowsDepth;
  if (batches && few && p.M >= kEvenRows) few = !is_even(raw, batch_of(raw, device).config, device);
  if (regular && few) {
    set_few_rows(plan, raw, device);
    return plan;
  }
  if (regular && device.is_hopper() && set_engine(plan, raw, device)) return plan;
  if (regular && p.N >= kRoundedColumns) {
    plan.algorithm = Algorithm::mma;
    plan.mma = choose_int4_mma(raw, device);
  } else if (regular || p.M <= kAnyRows) {
    plan.algorithm = Algorithm::any;
    plan.scale = p.scale;
  }
  return plan;
}

bool takes_one_pass(int64_t K, const Device& device) { return device.family != Family::none && K < kMostAnyDepth; }

namespace {

// How tiles that do not come out even over the blocks are shared along K (kernels/segments.h).
Explanation& with_sharing(Explanation& e, int cluster, int ranges) {
  if (cluster > 1) return e.with("cluster", cluster);
  return ranges > 0 ? e.with("shared_blocks", ranges) : e;
}

template <class Config>
Explanation explain_few_rows(const char* kernel, const Config& c) {
  return explain_kernel(kernel).with("tile_n", c.tiles * c.warp_tiles * 16).with("slices", c.slices).with("cluster", c.cluster);
}

Explanation explain_batch(const BatchConfig& c) {
  Explanation e = explain_kernel("int4_batch");
  e.with("tile_n", kBatchRows / c.slices).with("tile_m", c.tokens).with("slices", c.slices);
  return with_sharing(e, c.cluster, 0);
}

}  // namespace

Explanation explain_wgmma(const char* kernel, const WgmmaConfig& c) {
  Explanation e = explain_kernel(kernel);
  e.with("tile_n", c.rows).with("tile_m", c.tokens);
  if (c.turned) e.with("turned", 1);
  return with_sharing(e, c.cluster, c.ranges);
}

Explanation explain(const Plan& plan) {
  switch (plan.algorithm) {
    case Algorithm::generic: break;
    case Algorithm::any: return explain_kernel("int4_any");
    case Algorithm::ring: return explain_few_rows("int4_ring", plan.ring);
    case Algorithm::decode: return explain_few_rows("int4_decode", plan.decode);
    case Algorithm::batch: return explain_batch(plan.batch);
    case Algorithm::wgmma: return explain_wgmma("int4_wgmma", plan.wgmma);
    case Algorithm::mma:
      return explain_kernel("int4_mma")
          .with("tile_n", plan.mma.block_n)
          .with("tile_m", plan.mma.block_m)
          .with("splits", plan.mma.splits);
  }
  return generic_explanation();
}

}  // namespace aoext::cuda
