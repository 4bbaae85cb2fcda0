// Which tile kernel serves a product, by the limits of tiles.h.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "common/formats.h"
#include "sycl/plan.h"
#include "sycl/split.h"
#include "sycl/tiles.h"

namespace aoext::xpu {
namespace {

// Whether what shares a scale, of the weight and of an input of 8 bits, begins at multiples of so many k.
bool fits(const LinearProblem& p, const Tiles& tiles, int group) {
  if (group == 0) return true;
  const bool by_groups = tiles.source == Source::blocks_tile || tiles.source == Source::planes_tile;
  const bool input_has_groups = by_groups && !is_high_precision(p.input);
  return p.group_size % group == 0 && (!input_has_groups || p.input_group_size % group == 0) &&
         (group != tiles.long_group || !tiles.whole_blocks || p.K % kBlock == 0);
}

// Rows of x that one weight serves. Experts have the mean and two standard deviations of a random choice at most, so that nearly
// each weight is read once.
int64_t rows_of_a_weight(const LinearProblem& p) {
  if (p.experts == 0) return p.M;
  const double mean = static_cast<double>(p.M) / static_cast<double>(p.experts);
  return std::min(p.M, static_cast<int64_t>(std::ceil(mean + 2 * std::sqrt(mean))));
}

int rows_for(int64_t M, Engine engine) {
  for (const int rows : kTileRows)
    if (rows >= M || (engine == Engine::lanes && rows == kLanesRows)) return rows;
  return *std::rbegin(kTileRows);
}

bool is_arranged(const Family& tile, const Tiles& tiles) {
  const bool has_order =
      tiles.arranges == Arranges::always || (tiles.arranges == Arranges::long_groups && tile.group == tiles.long_group);
  return has_order && tile.rows >= kArrangedRows;
}

Family chosen_tile(const LinearProblem& p, const Tiles& tiles, Engine engine) {
  const int group = fits(p, tiles, tiles.long_group) ? tiles.long_group : tiles.group;
  Family tile = tiles_on(p, engine);
  tile.rows = rows_for(rows_of_a_weight(p), engine), tile.group = group;
  return tile;
}

Plan plan_of(const Family& tile, const LinearProblem& p, const Tiles& tiles, const Device& device) {
  Plan plan;
  plan.algorithm = Algorithm::tile;
  plan.family = tile;
  plan.kernel = module(tile);
  plan.columns = tile.rows >= kArrangedRows ? 2 * kLanes : kLanes;
  plan.arranged = is_arranged(tile, tiles);
  plan.sub_groups = split(device, row_tiles(p, std::max(tile.rows, 1)) * ceil_div(p.N, plan.columns), p.K);
  return plan;
}

Plan forced_tile(const Forced& f, const LinearProblem& p, const Tiles& tiles, const Device& device, Family tile) {
  tile.rows = f.field("rows", tile.rows);
  tile.group = f.field("group", tile.group);
  Plan plan = plan_of(tile, p, tiles, device);
  plan.sub_groups = f.field("sub_groups", plan.sub_groups);
  const bool has_group = (tile.group == tiles.group || tile.group == tiles.long_group) && fits(p, tiles, tile.group);
  if (plan.kernel == nullptr || !has_group || !is_split(plan.sub_groups, device, p.K)) refuse_config(f, text(p), text(plan));
  return plan;
}

}  // namespace

const Tiles& tiles_of(const LinearProblem& p) {
  const bool has_row_scales = p.output == ScalarType::Int || is_rowwise(p);  // int8_mm has no scales at all
  const Source source = p.code == Code::int4 ? (is_high_precision(p.input) ? Source::int4_tile : Source::int4_scaled_tile)
                        : (kPlanes & code_bit(p.code)) != 0 ? Source::planes_tile
                        : has_row_scales                    ? Source::rowwise_tile
                                                            : Source::blocks_tile;
  return *std::find_if(std::begin(kTiles), std::end(kTiles),
                       [&](const Tiles& tiles) { return tiles.source == source && tiles.has(p.code); });
}

// planes_tile's kernels are called by the type of their operation.
Family tiles_on(const LinearProblem& p, Engine engine) {
  const Source source = tiles_of(p).source;
  if (source != Source::planes_tile) return {source, engine, p.code, p.input};
  const ScalarType product = engine == Engine::lanes                ? ScalarType::Float
                             : p.input == ScalarType::Float8_e4m3fn ? ScalarType::BFloat16
                                                                    : p.input;
  return {source, engine, kPlanesCode, product};
}

bool plan_tile(Plan& plan, const LinearProblem& p, Asked& asked, Engine engine, const Forced* f) {
  const Tiles& tiles = tiles_of(p);
  if (!runs(asked.device, engine) || p.subtracts_zero_point) return false;
  if (p.K % kStep != 0 || p.K > kMaxTileDepth || !fits(p, tiles, tiles.group) || p.N < tiles.fewest_columns ||
      p.N > tiles.most_columns)
    return false;
  const Family tile = chosen_tile(p, tiles, engine);
  if (module(tile) == nullptr) return false;
  const Plan made = f != nullptr ? forced_tile(*f, p, tiles, asked.device, tile) : plan_of(tile, p, tiles, asked.device);
  if (!asked.serves(made.family)) return false;
  plan = made;
  return true;
}

}  // namespace aoext::xpu
