// What the tile kernels ask of a problem, as data. docs/glossary.md has the words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/formats.h"
#include "common/sizes.h"
#include "sycl/family.h"
#include "sycl/kernels/shape.h"

namespace aoext::xpu {

// The rows of y that kernels compute in a work-group: without a matrix engine up to kLanesRows of them.
constexpr int kTileRows[] = {1, 4, 8, 16, 32};
constexpr int kLanesRows = 8;

// Up to how many rows of x tiles are tried before oneDNN. On a GPU the matrix engine keeps up with memory to about 64 rows; lanes
// alone multiply slower than they read from a few rows on. The CPU device is for tests: there oneDNN wins from two rows on.
struct TilesFirst {
  int64_t matrix, lanes_of_gpu, lanes_of_cpu;
};
constexpr TilesFirst kTilesFirst{64, 8, 1};

// The same where oneDNN multiplies by a weight that is dequantised for it, which writes and reads it once more; up to how many
// rows the kernel for every size is tried before that; and the most elements of a weight that this is done with.
constexpr TilesFirst kTilesFirstOfPlanes{128, 16, 64};
constexpr int64_t kAnyFirstOfPlanes = 4;
constexpr int64_t kMostDequantized = int64_t{1} << 27;

enum class Arranges { no, long_groups, always };  // which kernels for kArrangedRows and more read x as arrange_input leaves it

struct Tiles {
  Source source;
  unsigned codes;         // a bit for each Code that its weights may have
  int group, long_group;  // its kernels are for groups that are multiples of these; 0: for one scale a row
  bool whole_blocks;      // whether the kernels for long groups ask kBlock of K, too
  Arranges arranges;
  int64_t fewest_columns, most_columns;  // N

  constexpr bool has(Code code) const { return (codes >> static_cast<int>(code) & 1) != 0; }
};

// oneDNN may round each dequantised weight to the input's type, and the tile kernels round a table's numbers to it. Over fewer
// columns than this an output row may be so small beside its terms that the rounding shows.
constexpr int64_t kProductColumns = 32;

constexpr int64_t kMostDivided = std::numeric_limits<int>::max();  // columns that a kernel divides by block_n in 32 bits

constexpr unsigned code_bit(Code code) { return 1U << static_cast<int>(code); }
constexpr unsigned kInt4 = code_bit(Code::int4), kTable = code_bit(Code::lut4);
constexpr unsigned kEightBits = code_bit(Code::int8) | code_bit(Code::e4m3) | code_bit(Code::e5m2);
constexpr unsigned kPlanes = [] {
  unsigned codes = 0;
  for (const Format& format : kFormats)
    if (format.scales != Format::Scales::blocks && format.code != Code::int4) codes |= code_bit(format.code);
  return codes;
}();

constexpr Tiles kTiles[] = {
    {Source::int4_tile, kInt4, kStep, kBlock, false, Arranges::always, 0, kMostElements},
    {Source::int4_scaled_tile, kInt4, kStep, kBlock, false, Arranges::no, 0, kMostElements},
    {Source::rowwise_tile, kEightBits, 0, 0, false, Arranges::no, 0, kMostElements},
    {Source::blocks_tile, kEightBits, kStep, kBlock, true, Arranges::no, 0, kMostDivided},
    {Source::blocks_tile, kTable, kStep / 2, kStep, true, Arranges::long_groups, kProductColumns, kMostDivided},
    {Source::planes_tile, kPlanes, kStep / 2, kStep, false, Arranges::no, 0, kMostElements},
};

// The one that stands for all codes of planes_tile, whose kernels take a code as an argument.
constexpr Code kPlanesCode = Code::int2;

const Tiles& tiles_of(const LinearProblem& p);

// The tiles of a problem on an engine, of any size.
Family tiles_on(const LinearProblem& p, Engine engine);

// Tiles of rows in a launch. The host does not know how many rows each expert has: as many tiles as there may be, since those of
// each, and the rows behind the last offset, begin with a tile.
constexpr int64_t row_tiles(const LinearProblem& p, int rows) {
  if (p.experts == 0) return ceil_div(p.M, rows);
  const int64_t begun = std::min(p.M, p.experts + 1);
  return begun + (p.M - begun) / rows;
}

}  // namespace aoext::xpu
