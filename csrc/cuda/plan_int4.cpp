// Weight-only int4.
#include <optional>

#include "cuda/choose_once.h"
#include "cuda/forced.h"
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
    case ScalarType::Float8_e8m0fnu: return Element::e8m0;
    case ScalarType::Byte: return Element::lut4;
    default: return Element::fp32;
  }
}

Int4Linear int4_linear(const LinearProblem& p) {
  Int4Linear raw{};
  raw.M = p.M, raw.N = p.N, raw.K = p.K, raw.group_size = p.group_size;
  raw.type = raw.code = element(p.output), raw.scale_type = element(p.scale), raw.bias_type = element(p.bias);
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
// Of both, which count bytes of scales, and of their rows of w, in 32 bits.
constexpr int64_t kMostFewRowsColumns = int64_t{1} << 29, kMostFewRowsDepth = int64_t{1} << 25;

// Ring or decode, whichever is said to be faster.
Int4Kernel few_rows(const Int4Linear& raw, const Device& device) {
  const Choice<RingConfig> ring = choose_int4_ring(raw, device);
  if (raw.M <= kRingRows || !int4_decode_takes(raw)) return ring.config;
  const Choice<DecodeConfig> decode = choose_int4_decode(raw, device);
  if (decode.microseconds < ring.microseconds) return decode.config;
  return ring.config;
}

// Whether all of batch runs at once, on all multiprocessors but a few, and K is long.
bool is_even(const Int4Linear& raw, const BatchConfig& c, const Device& device) {
  const int64_t blocks = ceil_div(raw.N, kBatchRows / c.k_splits) * c.cluster;
  return raw.K >= kEvenDepth && raw.group_size >= kEvenGroup && c.k_splits > 1 && c.blocks == blocks &&
         blocks <= device.multiprocessors && 32 * blocks >= 31 * device.multiprocessors;
}

// Batch or wgmma, which serve Hopper; nothing where neither takes the problem.
std::optional<Int4Kernel> engine(const Int4Linear& raw, const Device& device) {
  Choice<BatchConfig> batch;
  Choice<WgmmaConfig> tiles;
  if (int4_batch_takes(raw)) batch = choose_int4_batch(raw, device);
  const bool modelled = batch.config.block_m == 0 || raw.group_size >= kModelledGroup;
  if (modelled && raw.N >= kRoundedColumns && int4_wgmma_takes(raw)) tiles = choose_int4_wgmma(raw, device);
  if (batch.config.block_m == 0 && tiles.config.block_m == 0) return std::nullopt;
  if (batch.microseconds <= tiles.microseconds) return batch.config;
  return Int4WgmmaConfig{tiles.config};
}

// What fast kernels take of a problem.
struct Regular {
  ScalarType scale;  // of the input's type or float32
  Int4Linear raw;
  bool serves;

  Regular(const LinearProblem& p, bool aligned)
      : scale(p.scale == p.output ? p.scale : ScalarType::Float), raw(int4_linear(p, scale)) {
    serves = aligned && p.M > 0 && p.N > 0 && serves_int4_mma(raw);
  }
};

Int4Plan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (device.family == Family::none || p.K >= kMostAnyDepth) return {};
  const Regular regular(p, aligned);
  const Int4Linear& raw = regular.raw;
  const bool batches = regular.serves && device.is_hopper() && int4_batch_takes(raw);
  bool few = p.M <= (batches ? kFewBatchRows : kFewRows) && p.N < kMostFewRowsColumns && p.K < kMostFewRowsDepth;
  if (batches && few && p.M >= kEvenRows) few = !is_even(raw, choose_int4_batch(raw, device).config, device);
  if (regular.serves && few) return {few_rows(raw, device), regular.scale};
  if (regular.serves && device.is_hopper())
    if (const auto kernel = engine(raw, device)) return {*kernel, regular.scale};
  if (regular.serves && p.N >= kRoundedColumns) return {choose_int4_mma(raw, device), regular.scale};
  if (regular.serves || p.M <= kAnyRows) return {Int4Any{}, p.scale};
  return {Generic{}, regular.scale};
}

Int4Plan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  const Regular regular(p, aligned);
  const Int4Linear& raw = regular.raw;
  const bool served = device.family != Family::none && p.K < kMostAnyDepth, serves = served && regular.serves;
  const bool few = serves && p.N < kMostFewRowsColumns && p.K < kMostFewRowsDepth, hopper = serves && device.is_hopper();
  const auto plan = [&]<class Config>(bool takes, const auto& choose,
                                      bool (*fits)(const Int4Linear&, const Config&)) -> Int4Plan {
    return {forced_config<Config>(f, text(p), device, takes, choose, [&](const Config& c) { return fits(raw, c); }),
            regular.scale};
  };
  if (is<RingConfig>(f))
    return plan(few && int4_ring_takes(raw), [&] { return choose_int4_ring(raw, device).config; }, int4_ring_fits);
  if (is<DecodeConfig>(f))
    return plan(few && int4_decode_takes(raw), [&] { return choose_int4_decode(raw, device).config; }, int4_decode_fits);
  if (is<BatchConfig>(f))
    return plan(hopper && int4_batch_takes(raw), [&] { return choose_int4_batch(raw, device).config; }, int4_batch_fits);
  if (is<MmaConfig>(f)) return plan(serves, [&] { return choose_int4_mma(raw, device); }, int4_mma_fits);
  if (is<Int4WgmmaConfig>(f)) {
    const auto choose = [&] { return choose_int4_wgmma(raw, device).config; };
    const auto fits = [&](const Int4WgmmaConfig& c) { return int4_wgmma_fits(raw, c); };
    return {forced_config<Int4WgmmaConfig>(f, text(p), device, hopper && int4_wgmma_takes(raw), choose, fits), regular.scale};
  }
  if (is<Int4Any>(f) && !served) refuse_kernel(f, text(p), device);
  if (is<Int4Any>(f)) return {Int4Any{}, p.scale};
  return {};
}

}  // namespace

Int4Plan plan_int4(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, Int4Kernel())) return forced_plan(*f, p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

bool takes_one_pass(int64_t K, const Device& device) { return device.family != Family::none && K < kMostAnyDepth; }

namespace {

// How tiles that do not come out even over the blocks are shared along K (kernels/tile_scheduler.h).
Explanation& with_sharing(Explanation& e, int cluster, int stream_k_blocks) {
  if (cluster > 1) return e.with("cluster", cluster);
  return stream_k_blocks > 0 ? e.with("stream_k_blocks", stream_k_blocks) : e;
}

Explanation explain_batch(const BatchConfig& c) {
  Explanation e = explain_kernel("int4_batch");
  e.with("tile_n", kBatchRows / c.k_splits).with("tile_m", c.block_m).with("k_splits", c.k_splits);
  return with_sharing(e, c.cluster, 0);
}

}  // namespace

Explanation explain_wgmma(const char* kernel, const WgmmaConfig& c) {
  Explanation e = explain_kernel(kernel);
  e.with("tile_n", c.block_n).with("tile_m", c.block_m);
  if (c.x_is_left) e.with("x_is_left", 1);
  return with_sharing(e, c.cluster, c.stream_k_blocks);
}

Explanation explain(const Int4Plan& plan) {
  return std::visit(
      Overloaded{[](const Generic&) { return generic_explanation(); }, [](const Int4Any&) { return explain_kernel("int4_any"); },
                 [](const RingConfig& c) { return explain_few_rows("int4_ring", c); },
                 [](const DecodeConfig& c) { return explain_few_rows("int4_decode", c); },
                 [](const BatchConfig& c) { return explain_batch(c); },
                 [](const Int4WgmmaConfig& c) { return explain_wgmma("int4_wgmma", c); },
                 [](const MmaConfig& c) {
                   return explain_kernel("int4_mma").with("tile_n", c.block_n).with("tile_m", c.block_m).with("splits", c.splits);
                 }},
      plan.kernel);
}

std::string text(const Int4Plan& plan) { return text(plan.kernel) + " | scale=" + torch::headeronly::toString(plan.scale); }

}  // namespace aoext::cuda
