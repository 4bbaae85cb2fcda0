// The order in which few rows of x go past a weight that is read as it lies, one row at a time, where reading is what bounds
// them. Longer rows are read in pieces, whose x stays in the first cache, a run of rows at a time; the next run is fetched
// meanwhile in the order in which it lies.
#pragma once

#include "cpu/kernels/vectors.inc.h"

namespace aoext::cpu {
namespace {

constexpr int64_t kRun = 8;  // rows

// body(Rows<of x>, first, Rows<of w>, first, begin, elements, offset of as many bytes to fetch); sums start as zeros.
// More than two rows of x meet kRows rows of w at a time.
template <int kRows, class Sum, class Body>
inline void each_piece(int64_t M, int64_t N, int64_t K, int64_t operand_bytes, Sum (*acc)[kPanel], const Body& body) {
  for (int64_t m = 0; m < M; ++m) memset(acc[m], 0, sizeof acc[m]);
  each_rows<kFewRows>(M, [&](auto inputs, int64_t m) {
    constexpr int kRowsOfX = decltype(inputs)::count, kTogether = kRowsOfX > 2 ? kRows : 1;
    const int64_t piece = (kRowsOfX > 1 ? 8192 : 16384) / operand_bytes;
    for (int64_t run = 0, end; run < N; run = end) {
      end = N - run < kRun ? N : run + kRun;
      int64_t next = end * K;
      for (int64_t begin = 0; begin < K; begin += piece) {
        const int64_t n = K - begin < piece ? K - begin : piece;
        int64_t i = run;
        const auto take = [&](auto rows) {
          body(inputs, m, rows, i, begin, n, next);
          next += decltype(rows)::count * n;
          i += decltype(rows)::count;
        };
        while (end - i >= kTogether) take(Rows<kTogether>());
        while (i < end) take(Rows<1>());
      }
    }
  });
}

}  // namespace
}  // namespace aoext::cpu
