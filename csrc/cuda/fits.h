// The constants of the kernels' models of time, of which fitted.h has a table for each GPU that was measured. Times are
// microseconds; what each constant multiplies stands at its use, beside the kernel. constants(): those of a part, in order.
#pragma once

#include <tuple>

#include "common/element.h"
#include "cuda/properties.h"

namespace aoext::cuda {

// The split-K reduction of the kernels for few rows of x (kernels/few_rows.h).
struct ReductionFit {
  double turn, sum, round;      // of every turn
  double cluster, cluster_sum;  // more of each where blocks share K
  double large_cluster;         // once, for each doubling of clusters of two
  auto constants() { return std::tie(turn, sum, round, cluster, cluster_sum, large_cluster); }
};

struct RingFit {
  struct Costs {
    double read, work, work_m, fill;  // for a µs of reading, for a KB of a warp's weights and more per m, for the first steps
    auto constants() { return std::tie(read, work, work_m, fill); }
  };
  Costs whole_units, two_rows, eight_rows, more_rows;
  double latency, slice_read, read_busy, read_idle;
  double launch, x, x_again, alone, few_warps;
  auto constants() {
    return std::tie(whole_units, two_rows, eight_rows, more_rows, latency, slice_read, read_busy, read_idle, launch, x, x_again,
                    alone, few_warps);
  }
};

struct DecodeFit {
  // For a KB of a warp's weights, more per m, and at least; for a k-tile of x that is staged; for staging that waits; for a µs of
  // reading; and for what is left.
  struct Costs {
    double work, work_m, latency, staged, again, read, rest;
    auto constants() { return std::tie(work, work_m, latency, staged, again, read, rest); }
  };
  Costs eight_rows, more_rows;
  double small_groups;  // times as long for rounds
  // The most blocks that share K, as many as ever were faster: with fewer than 4 rows of x, up to 8, and more.
  int cluster_few_rows, cluster_eight_rows, cluster_more_rows;
  auto constants() { return std::tie(eight_rows, more_rows, small_groups); }
};

// kernels/int4_mma.cu and kernels/rowwise_mma.cu: a tile's 64-deep step, and the blocks of a multiprocessor that take as long as
// one; what splitting K costs, and each MB of partial sums.
struct MmaFit {
  struct Tile {
    Element x;  // int8, e4m3 for every float8, bf16 for 16 bits
    int block_n, block_m;
    double step, filled;
    auto constants() { return std::tie(step, filled); }
  };
  double fill_steps, split, split_mb;
};
struct Int4MmaFit : MmaFit {
  Tile tiles[3];
  auto constants() { return std::tie(fill_steps, split, split_mb, tiles); }
};
struct RowwiseMmaFit : MmaFit {
  Tile tiles[13];
  auto constants() { return std::tie(fill_steps, split, split_mb, tiles); }
};

struct BatchFit {
  struct Tile {
    int block_m;
    double step[3];  // of 1, 2 and 4 k-splits
    auto constants() { return std::tie(step); }
  };
  Tile tiles[3];
  double launches;              // of both kernels
  double turn, turn_row;        // of a turn, and for each row of x
  double cluster, cluster_row;  // of a reduction over two blocks, likewise
  auto constants() { return std::tie(tiles, launches, turn, turn_row, cluster, cluster_row); }
};

// Weight-only products by wgmma (kernels/sm90a/weight_only_launch.h).
struct WeightOnlyWgmmaFit {
  // Tiles of one BLOCK_N.
  struct Tiles {
    double steps[6];  // of 32, 64, 96, 128, 192 and 256 rows of x; 0 where there are none
    double tile, cluster;
    auto constants() { return std::tie(steps, tile, cluster); }
  };
  Tiles rows_192, rows_128, rows_64;
  // What stream-K takes: clearing counters before; a fix-up block that waits for the last partial sums; storing those of any
  // further tile of 128 by 256, and adding those of one range, at the end or beside whole tiles.
  double clearing, waiting, leaving, adding, adding_beside;
  auto constants() { return std::tie(rows_192, rows_128, rows_64, clearing, waiting, leaving, adding, adding_beside); }
};

struct RowwiseWgmmaFit {
  struct Tile {
    int height, block_m;  // BLOCK_N of the kernel, for tiles of so many output channels or fewer, more than half; BLOCK_M
    double int8, float8;  // a k-tile
    auto constants() { return std::tie(int8, float8); }
  };
  Tile tiles[11];
  double caches, memory;  // bytes a microsecond
  double tile, output, cluster;
  double both;  // of the shorter of reading and multiplying does not hide behind the other
  // Rows of x up to which tiles of fewer than 128 output channels were measured, and those without swap_ab; their BLOCK_M at
  // most.
  int64_t few_rows, x_left_rows;
  int narrow;
  auto constants() { return std::tie(tiles, caches, memory, tile, output, cluster, both); }
};

struct RowwiseDecodeFit {
  struct Costs {
    double work, work_wide, latency, filled;  // a warp's k-tile, with more than 8 rows of x, over the depth; a ring that fills
    auto constants() { return std::tie(work, work_wide, latency, filled); }
  };
  Costs int8, others;
  double read, read_slice, latency_wide;
  double launch, x, x_again, chunk, ring;
  double reduction, reduction_slice, alone, cluster, large_cluster;
  double fewest_units, fewest_busy;  // in flight, and of the multiprocessors: the range that was measured
  auto constants() {
    return std::tie(int8, others, read, read_slice, latency_wide, launch, x, x_again, chunk, ring, reduction, reduction_slice,
                    alone, cluster, large_cluster, fewest_units, fewest_busy);
  }
};

// Between kernels: what choosing takes beside their models.
struct BetweenFit {
  double finding_experts;  // int4_grouped_wgmma, to start and to find the tiles
  double weight_only;      // times as long as its model says int4_wgmma takes from 256 rows on, at the clock that power leaves it
  double sums, summing;    // quantising x for sums of it rather than for numbers of 16 bits, and for each number
  double widening;         // a launch that makes numbers of 16 bits of x
  // rowwise_decode, each of whose blocks reads all of x, or rowwise_wgmma: elements of a row of w from which it is long, and of a
  // weight up to which it is small.
  int64_t long_row, small_weight;
  int64_t quantized;  // elements of x that a multiprocessor's blocks of rowwise_decode quantise, up to which that saves a launch
  auto constants() { return std::tie(finding_experts, weight_only, sums, summing, widening); }
};

// kernels/packed_mma.cu: microseconds.
struct PackedMmaFit {
  double launch, fill;  // of a launch, and of a block that begins
  double alone, turn;   // a warp's 256 k, however idle the others are, and of each warp of a busy multiprocessor
  double caches;        // L2's bandwidth over the memory's
  double narrow;        // longer, over the warps of a block
  auto constants() { return std::tie(launch, fill, alone, turn, caches, narrow); }
};

// kernels/packed_tiles.cu: microseconds.
struct PackedTilesFit {
  double launch, fill;            // of a launch, and of a block that begins
  double alone, alone_column;     // a block's chunk of K, however idle the others are, and more for each 8 rows of x
  double turn, turn_column;       // the same of each block of a busy multiprocessor
  double cluster, cluster_block;  // of blocks that share K, and for each of them
  auto constants() { return std::tie(launch, fill, alone, alone_column, turn, turn_column, cluster, cluster_block); }
};

struct Fits {
  double bandwidth;  // of the GPU that was measured, as Device has it
  ReductionFit reduction;
  RingFit int4_ring;
  DecodeFit int4_decode;
  Int4MmaFit int4_mma;
  BatchFit int4_batch;
  WeightOnlyWgmmaFit int4_wgmma, weight_only_wgmma;
  RowwiseDecodeFit rowwise_decode;
  RowwiseMmaFit rowwise_mma;
  RowwiseWgmmaFit rowwise_wgmma;
  RowwiseWgmmaFit::Tile scaled_int4_tiles[2];  // with groups of 128; beside k-tiles they cost what those of rowwise_wgmma do
  BetweenFit between;
  PackedMmaFit packed_mma;
  PackedTilesFit packed_tiles;
  auto constants() {
    return std::tie(bandwidth, reduction, int4_ring, int4_decode, int4_mma, int4_batch, int4_wgmma, weight_only_wgmma,
                    rowwise_decode, rowwise_mma, rowwise_wgmma, scaled_int4_tiles, between, packed_mma, packed_tiles);
  }
};

// The table for a device, which gpus.h says. For another GPU than it was measured on, numbers of multiprocessors
// come from the device, and so does bandwidth, whose share of the time differs most; the choice needs ratios of the others alone.
inline const Fits& fits_of(const Device& device) { return *device.fits; }

// How much faster a device reads memory than the one that its table was measured on: exactly 1 there.
inline double bandwidth_ratio(const Device& device) { return device.bandwidth / fits_of(device).bandwidth; }

}  // namespace aoext::cuda
