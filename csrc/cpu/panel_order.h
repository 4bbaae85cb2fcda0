// The order in which a thread goes through its panels of w.
//
// Where the second cache does not hold the packed x, K is cut into K-blocks, multiples of KC, whose x fits, and a K-block meets a
// group of panels before the next one comes: x passes from the third cache once for each group, not for each panel, and the sums
// of the whole group wait.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/sizes.h"
#include "cpu/packed_x.h"

namespace aoext::cpu {

constexpr int64_t kKBlockBytes = int64_t{512} << 10;  // of x, in a second cache of 1 or 2 MB
constexpr int64_t kGroupBytes = int64_t{512} << 10;   // of a group's sums

// A panel of w, its place in its group, and the K-block, [begin, end), that meets it.
struct Visit {
  int64_t panel, place, begin, end;
};

class PanelOrder {
 public:
  PanelOrder(const GemmShape& shape, int64_t M, int64_t K, int64_t sum_bytes) : K_(K) {
    const int64_t rows = shape.whole_panels(M), steps = ceil_div(K, shape.KC);
    const int64_t most = std::max<int64_t>(1, kKBlockBytes / (rows * shape.KC * shape.operand_bytes * shape.limbs));  // steps
    k_block_ = equal_part(steps, most) * shape.KC;
    k_blocks_ = ceil_div(K, k_block_);
    group_ = k_blocks_ == 1 ? 1 : std::max<int64_t>(1, kGroupBytes / (rows * kPanel * sum_bytes));
  }

  int64_t group() const { return group_; }  // panels

  // How often `count` panels are visited, and the i-th visit.
  int64_t visits(int64_t count) const { return count * k_blocks_; }
  Visit visit(int64_t i, int64_t count) const {
    const int64_t first = i / (group_ * k_blocks_) * group_, panels = std::min(group_, count - first);
    const int64_t in_group = i - first * k_blocks_, place = in_group % panels, begin = in_group / panels * k_block_;
    return {first + place, place, begin, std::min(begin + k_block_, K_)};
  }

 private:
  int64_t K_, k_blocks_, k_block_, group_;
};

}  // namespace aoext::cpu
