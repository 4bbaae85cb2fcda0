// The sizes of the small-M kernels' tiles, for the kernels and for the plans that launch them (docs/glossary.md has the words).
#pragma once

namespace aoext::xpu {

constexpr int kLanes = 16;              // of a sub-group: the width of the matrix engines of Xe-HPC, Xe2 and Xe3
constexpr int kStep = 32;               // k-step: the K of two matrix operations on 16-bit floats, of one on int8
constexpr int kBlock = 128;             // k-block: the K of a 64-byte line of int4 weights
constexpr int kMaxTileDepth = 1 << 20;  // most K: 32-bit offsets reach all of a row, and GroupOf is exact (int4_tile.cpp)
constexpr int kMaxAnyDepth = 1 << 30;   // most K of linear_any, whose offsets in a row are 32-bit
constexpr int kArrangedRows = 16;       // rows of a work-group from which on x by codes of 4 bits is reordered by arrange_input
constexpr int kArrangedBlock = 8;       // rows that arrange_input interleaves
constexpr int kMaxSubGroups = 16;       // in a work-group, at most
constexpr int kLocalMemory = 8 << 10;   // bytes, at most: kMaxSubGroups partial sums of 8 rows by kLanes (split_k.h)
constexpr int kTileAlignment = 16;      // bytes: what the kernels load at a time

}  // namespace aoext::xpu
