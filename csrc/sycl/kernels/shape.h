// How the small-M kernels cut a product into parts, for kernels and for the plans that launch them.
#pragma once

namespace aoext::xpu {

constexpr int kLanes = 16;              // of a sub-group: what the matrix engines of Xe-HPC, Xe2 and Xe3 want
constexpr int kStep = 32;               // of K: two matrix operations of 16-bit floats, one of int8
constexpr int kBlock = 128;             // of K: a 64-byte line of int4 weights
constexpr int kMaxTileDepth = 1 << 20;  // K: rows stay within 32-bit offsets, groups exact (int4_tile.cpp)
constexpr int kMaxAnyDepth = 1 << 30;   // K of linear_any, whose offsets in a row are 32-bit
constexpr int kArrangedRows = 16;       // of a work-group of int4_tile, from which on x is arranged first
constexpr int kArrangedBlock = 8;       // rows
constexpr int kMaxSubGroups = 16;       // in a work-group
constexpr int kLocalMemory = 8 << 10;   // bytes, at most: kMaxSubGroups sums of 8 rows by kLanes (split_k.h)
constexpr int kTileAlignment = 16;      // bytes: what the kernels load at a time

}  // namespace aoext::xpu
