// x as a gemm takes it: operands in panels of MR rows, packed once for all of w.
//
// It knows nothing of torch: parallel_for(n, grain, f) is a parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "common/sizes.h"
#include "cpu/isa.h"

namespace aoext::cpu {

// So much of x is packed at a time: MC rows of it.
constexpr int64_t kPackedXBytes = int64_t{4} << 20;

inline int64_t padded(int64_t n) { return ceil_div(n, kPad) * kPad; }

// The parts of n, at most so large, without a small rest.
inline int64_t equal_part(int64_t n, int64_t most) { return ceil_div(n, ceil_div(n, most)); }

// Threads start to pay at about this many weights each.
inline int64_t grain(int64_t rows, int64_t K) { return std::max<int64_t>(1, (int64_t{1} << 15) / (rows * K)); }

// Memory at the start of a cache line, so that no vector of operands crosses one; not initialised.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      : data_(static_cast<char*>(::operator new(static_cast<size_t>((bytes / kLine + 1) * kLine), kAlignment))) {}
  char* operator+(int64_t bytes) const { return data_.get() + bytes; }

 private:
  static constexpr std::align_val_t kAlignment{kLine};
  struct Free {
    void operator()(char* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<char, Free> data_;
};

// x [M, K], contiguous, and the scales of segments of its rows where it has some, a row's after another's.
struct InputRows {
  const void* data;
  Element element;
  int64_t element_size, M, K;
  const float* scales = nullptr;
  int64_t scales_of_row = 0;

  const char* row(int64_t m) const { return static_cast<const char*>(data) + m * K * element_size; }
  InputRows run(int64_t first, int64_t count) const {
    return {row(first), element, element_size, count, K, scales + first * scales_of_row, scales_of_row};
  }
};

// Row m as the floats that it stands for; scales are of `block` elements.
inline void values_of(const InputRows& x, int64_t block, int64_t m, float* out) {
  kernels().to_float(x.element, x.row(m), out, x.K);
  if (x.scales == nullptr) return;
  const float* scale = x.scales + m * x.scales_of_row;
  for (int64_t begin = 0; begin < x.K; begin += block, ++scale)
    for (int64_t k = begin; k < std::min(begin + block, x.K); ++k) out[k] *= *scale;
}

// Up to MC rows of x at a time, packed in blocks [rows, KC] along K: what meets a block of weights lies together, and rows do not
// fall into one set of the caches, as they would a power of two apart.
class PackedX {
 public:
  PackedX(const GemmShape& shape, const InputRows& x)
      : shape_(shape),
        x_(x),
        bytes_(shape.operand_bytes * shape.limbs),
        row_bytes_(ceil_div(x.K, shape.KC) * shape.KC * bytes_),
        mc_(std::min(x.M, equal_part(ceil_div(x.M, kPanel), std::max<int64_t>(1, kPackedXBytes / row_bytes_ / kPanel)) * kPanel)),
        rows_(shape.whole_panels(mc_)),
        operands_(rows_ * row_bytes_),
        start_(mc_) {}

  int64_t MC() const { return mc_; }
  const char* block(int64_t k) const { return operands_ + k * rows_ * bytes_; }

  // The scales of segments of the rows at hand.
  const float* scales() const { return x_.scales + first_ * x_.scales_of_row; }
  int64_t scales_of_row() const { return x_.scales_of_row; }

  // What the sums of row m start with.
  int32_t start(int64_t m) const { return static_cast<int32_t>(start_[m]); }

  // The sums of the rows at hand, [K/group_size, sums_stride()]. Where `pack` did not bring them few weights ask for them: the
  // first to do so computes them.
  const float* group_sums(int64_t group_size) {
    std::call_once(*summed_, [&] {
      sums_.resize(x_.K / group_size * rows_);
      sum_groups(group_size, 0, count_);
    });
    return sums_.data();
  }
  int64_t sums_stride() const { return rows_; }

  // Rows [first, first + count), with the sums of groups of so many, or of none.
  template <class ParallelFor>
  void pack(int64_t first, int64_t count, int64_t group_size, const ParallelFor& parallel_for) {
    const int64_t MR = shape_.MR;
    first_ = first;
    count_ = count;
    summed_.emplace();
    if (group_size > 0) std::call_once(*summed_, [&] { sums_.resize(x_.K / group_size * rows_); });
    parallel_for(ceil_div(count, MR), grain(MR, x_.K), [&](int64_t begin_panel, int64_t end_panel) {
      const int64_t begin = begin_panel * MR, end = std::min(end_panel * MR, count);
      std::fill(start_.begin() + begin, start_.begin() + end, 0);
      for (int64_t m = begin; m < end; m += MR) pack_panel(m, std::min(MR, count - m));
      if (group_size > 0) sum_groups(group_size, begin, end);
    });
  }

 private:
  // `rows` rows from m on, at most MR.
  void pack_panel(int64_t m, int64_t rows) {
    for (int64_t k = 0; k < x_.K; k += shape_.KC)
      shape_.pack_x(x_.element, x_.row(first_ + m) + k * x_.element_size, x_.K * x_.element_size, rows,
                    std::min(shape_.KC, x_.K - k), operands_ + (k * rows_ + m * shape_.KC) * bytes_, &start_[m]);
  }

  void sum_groups(int64_t group_size, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m)
      kernels().group_sums(x_.element, x_.row(first_ + m), x_.K, group_size, &sums_[m], rows_);
  }

  const GemmShape& shape_;
  const InputRows x_;
  int64_t bytes_, row_bytes_, mc_, rows_, first_ = 0, count_ = 0;
  Scratch operands_;
  std::optional<std::once_flag> summed_;
  std::vector<float> sums_;
  std::vector<uint32_t> start_;  // modulo 2³²
};

}  // namespace aoext::cpu
