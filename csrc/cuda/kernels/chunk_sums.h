// Sums of an 8-bit x over chunks of k, which the zero points of int4 multiply (sm90a/scaled_int4_wgmma.cuh).
#pragma once

#include <cstdint>

namespace aoext::cuda {

constexpr int kSumChunks = 32;                           // chunks of a row of x whose sums are a line
constexpr int kSumLine = 2 * kSumChunks, kSumBytes = 2;  // a line: their bf16, then what these leave over

struct ChunkSums {
  void* sums;  // [M, lines, kSumLine] of bf16, zeros behind K; or null
  int chunk;   // 32, 64 or 128 k
  int64_t lines;
};

}  // namespace aoext::cuda
