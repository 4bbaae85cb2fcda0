#include "cuda/plan_grouped_int4.h"

#include "cuda/choose_once.h"
#include "cuda/forced.h"

namespace aoext::cuda {
namespace {

// Rows of all experts up to which each may be a product of its own.
constexpr int64_t kMostRingRows = 512;
// What int4_grouped_wgmma takes beside what the model of int4_wgmma says, to start and to find the tiles: microseconds, on an
// H200.
constexpr double kFindingTiles = 3;

// What fast kernels take of a problem.
struct Regular {
  GroupedInt4Linear raw;
  ScalarType scale;  // of the input's type or float32
  bool ring, wgmma;

  Regular(const LinearProblem& p, const Device& device, bool aligned)
      : raw(grouped_int4_linear(p)), scale(p.scale == p.output ? p.scale : ScalarType::Float) {
    raw.scale_type = element(scale);
    const bool serves = device.family != Family::none && aligned && p.M > 0 && p.N > 0;
    ring = serves && int4_grouped_ring_takes(raw);
    wgmma = serves && device.is_hopper() && int4_grouped_wgmma_takes(raw);
  }
};

GroupedInt4Plan choose(const LinearProblem& p, const Device& device, bool aligned) {
  if (!takes_one_pass(p.K, device)) return {};
  const Regular regular(p, device, aligned);
  Choice<GroupedRingConfig> ring;
  Choice<GroupedWgmmaConfig> tiles;
  if (regular.ring && p.M <= kMostRingRows) ring = choose_int4_grouped_ring(regular.raw, device);
  if (regular.wgmma) tiles = choose_int4_grouped_wgmma(regular.raw, device);
  if (ring.config.blocks == 0 && tiles.config.blocks == 0) return {GroupedInt4Any{}, p.scale};
  if (ring.microseconds < tiles.microseconds + kFindingTiles) return {ring.config, regular.scale};
  return {tiles.config, regular.scale};
}

GroupedInt4Plan forced_plan(const Forced& f, const LinearProblem& p, const Device& device, bool aligned) {
  if (is<Generic>(f)) return {};
  const Regular regular(p, device, aligned);
  const auto plan = [&]<class Config>(bool takes, Choice<Config> (*choose)(const GroupedInt4Linear&, const Device&),
                                      bool (*fits)(const GroupedInt4Linear&, const Config&)) -> GroupedInt4Plan {
    return {forced_config<Config>(
                f, text(p), device, takes, [&] { return choose(regular.raw, device).config; },
                [&](const Config& c) { return fits(regular.raw, c); }),
            regular.scale};
  };
  if (is<GroupedRingConfig>(f)) return plan(regular.ring, choose_int4_grouped_ring, int4_grouped_ring_fits);
  if (is<GroupedWgmmaConfig>(f)) return plan(regular.wgmma, choose_int4_grouped_wgmma, int4_grouped_wgmma_fits);
  if (!takes_one_pass(p.K, device)) refuse_kernel(f, text(p), device);
  return {GroupedInt4Any{}, p.scale};
}

}  // namespace

GroupedInt4Linear grouped_int4_linear(const LinearProblem& p) { return {int4_linear(p), nullptr, p.experts}; }

GroupedInt4Plan plan_grouped_int4(const LinearProblem& p, const Device& device, bool aligned) {
  const Forced* const f = forced();
  if (f != nullptr && is_one_of(*f, GroupedInt4Kernel())) return forced_plan(*f, p, device, aligned);
  return choose_once(p, device, aligned, [&] { return choose(p, device, aligned); });
}

std::string text(const GroupedInt4Plan& plan) {
  return text(plan.kernel) + " | scale=" + torch::headeronly::toString(plan.scale);
}

Explanation explain(const GroupedInt4Plan& plan) {
  return std::visit(Overloaded{[](const Generic&) { return generic_explanation(); },
                               [](const GroupedInt4Any&) { return explain_kernel("int4_grouped_any"); },
                               [](const GroupedRingConfig& c) { return explain_few_rows("int4_grouped_ring", c); },
                               [](const GroupedWgmmaConfig& c) {
                                 return explain_kernel("int4_grouped_wgmma").with("tile_n", c.block_n).with("tile_m", c.block_m);
                               }},
                    plan.kernel);
}

}  // namespace aoext::cuda
