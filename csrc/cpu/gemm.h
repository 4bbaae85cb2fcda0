// Algorithm::gemm and its kin: y[M, N] = x[M, K] · w[N, K]ᵀ by blocks of w that are packed in cache (kernels/gemm*.inc.h).
//
//   for MC rows of x:                                      packed once for all of w; packed_x.h
//     in parallel, for groups of panels of w:              a panel is kPanel output channels; panel_order.h
//       for a K-block, of which x [MC, K-block] lies in the second cache:
//         for a panel of the group, whose sums [MC, kPanel] wait in between:
//           for KC of the K-block:
//             for NC channels of the panel:
//               pack w [NC, KC] into the first cache
//               macro-kernel: all MC rows of x by it       micro-kernels of MR rows by NR channels over KC
//
// It knows nothing of torch: parallel_for(n, grain, f) is a parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/packed_x.h"
#include "cpu/panel_order.h"
#include "cpu/zero_points.h"

namespace aoext::cpu {

// Panels [begin, end) of a weight's output channels.
struct Panels {
  int64_t begin, end;
};
inline Panels all_panels(int64_t N) { return {0, ceil_div(N, kPanel)}; }

// Elements [begin, begin + n) of `count` rows of w, from row i of a panel on: what becomes a packed block.
struct BlockOfPanel {
  int64_t i, count, begin, n;
};

// What is fetched meanwhile: as many times n elements, `stride` apart, from `begin` on, counted from the panel's first.
struct Fetch {
  int64_t begin, stride, n;
};

// The bytes of a packed block.
template <class Gemm>
int64_t block_bytes(const Gemm& gemm) {
  return gemm.shape.NC * gemm.shape.KC * gemm.shape.operand_bytes;
}
inline int64_t block_bytes(const GemmSegments& gemm) { return gemm.block_bytes; }

// A thread's panels of w, [begin, end), by all packed rows of x. A weight's Panel is described in weights.h.
template <class Sum, class Gemm, class Weight>
class ThreadOfGemm {
 public:
  ThreadOfGemm(const Gemm& gemm, PackedX& x, int64_t M, const PanelOrder& order, const Weight& weight, int64_t N, int64_t K,
               int64_t begin, int64_t end)
      : gemm_(gemm),
        shape_(gemm.shape),
        x_(x),
        order_(order),
        M_(M),
        N_(N),
        K_(K),
        begin_(begin),
        count_(end - begin),
        panel_sums_(shape_.whole_panels(M) * kPanel),
        panel_(weight),
        block_(block_bytes(gemm)),
        sums_(std::min(order.group(), count_) * panel_sums_ * static_cast<int64_t>(sizeof(Sum))) {
    if constexpr (requires { weight.group_size; }) group_size_ = weight.group_size;
  }

  // store(m, first, count, sums, row_scales) for rows [0, M).
  template <class Store>
  void multiply(const Store& store) {
    const int64_t visits = order_.visits(count_);
    for (int64_t v = 0; v < visits; ++v) {
      here_ = order_.visit(v, count_);
      then_ = order_.visit(std::min(v + 1, visits - 1), count_);
      const int64_t first = first_channel(here_), channels = std::min<int64_t>(kPanel, N_ - first);
      Sum* const sums = reinterpret_cast<Sum*>(sums_ + 0) + here_.place * panel_sums_;
      panel_.move(first, channels, here_.begin, here_.end);
      if constexpr (kBlockwise) panel_.stage_columns(gemm_, here_.begin, here_.end);
      if (here_.begin == 0) start_sums(sums);
      if constexpr (kSplits) split_zero_points(sums);
      if constexpr (Weight::kInt4) look_ahead(v + 1 < visits);
      for (int64_t k = here_.begin; k < here_.end; k += shape_.KC)
        for (int64_t i = 0; i < channels; i += shape_.NC)
          multiply_block({i, std::min(shape_.NC, channels - i), k, std::min(shape_.KC, K_ - k)}, &sums[i]);
      if (here_.end < K_) continue;
      shape_.order_sums(M_, sums);
      for (int64_t m = 0; m < M_; ++m) store(m, first, channels, &sums[m * kPanel], panel_.row_scales());
    }
  }

 private:
  static constexpr bool kCodes = std::is_same_v<Gemm, GemmInt4Codes>;
  static constexpr bool kSegments = std::is_same_v<Gemm, GemmSegments>;
  static constexpr bool kBlockwise = std::is_same_v<Gemm, GemmBlockwise>;
  static constexpr bool kSplits = !kSegments && requires(typename Weight::Panel& panel) { panel.take_zero_points_out(0, 0); };

  int64_t first_channel(const Visit& visit) const { return (begin_ + visit.panel) * kPanel; }

  void start_sums(Sum* sums) const {
    for (int64_t m = 0; m * kPanel < panel_sums_; ++m)
      std::fill_n(sums + m * kPanel, kPanel, m < M_ ? static_cast<Sum>(x_.start(m)) : Sum{});
  }

  // What zero points have beside the packed weights goes into the sums by x's sums over groups.
  void split_zero_points([[maybe_unused]] Sum* sums) {
    if constexpr (kCodes) {
      panel_.shift_zero_points(gemm_.code_offset, here_.begin, here_.end);
    } else {
      const ZeroPointsBeside beside = panel_.take_zero_points_out(here_.begin, here_.end);
      if (beside.count == 0) return;
      const int64_t stride = x_.sums_stride();
      gemm_.add_group_terms(x_.group_sums(group_size_) + beside.first * stride, stride, beside.terms, beside.count, M_, sums);
    }
  }

  // The next visit's scales and zero points are fetched while this one is multiplied, some groups of them a block.
  void look_ahead(bool more) {
    scales_ = more ? panel_.scales_ahead(first_channel(then_), then_.begin, then_.end) : ScalesAhead{};
    scales_a_block_ = more ? ceil_div(2 * shape_.KC, group_size_) : 0;
  }

  // The next block of these rows, or the first one of the next visit's. Or a part of the next panel, all of which is fetched so
  // while this one is multiplied: rows that lie some pages apart are read at half the pace, and fall into few sets of the first
  // cache.
  Fetch next_of(const BlockOfPanel& block) const {
    const int64_t further = (then_.panel - here_.panel) * kPanel, after = block.begin + block.n;
    const bool stays = after < here_.end, in_order = shape_.fetch_next_panel && here_.end - here_.begin == K_;
    const int64_t row = in_order || !stays ? further + block.i : block.i;
    if (first_channel(here_) + row + block.count > N_) return {};
    if (in_order) return {row * K_ + block.begin * block.count, block.n, further > 0 ? block.n : 0};
    const int64_t next = stays ? after : then_.begin;
    return {row * K_ + next, K_, std::min(shape_.KC, K_ - next)};
  }

  void multiply_block(const BlockOfPanel& block, Sum* sums) {
    panel_.pack(gemm_, block, next_of(block), block_ + 0);
    for (int64_t r = block.i; r < std::min(block.i + block.count, scales_a_block_); ++r) fetch_group(&scales_);
    if constexpr (kCodes) {
      gemm_.macro_kernel(block_ + 0, x_.block(block.begin), x_.group_sums(group_size_), x_.sums_stride(), M_,
                         panel_.int4(block.i), block.begin, block.n, sums);
    } else if constexpr (kSegments) {
      gemm_.macro_kernel(block_ + 0, x_.block(block.begin), panel_.scales(x_.scales(), x_.scales_of_row()), M_, block.begin,
                         block.n, sums);
    } else {
      const int whole = static_cast<int>(ceil_div(block.count, kNR) * kNR);
      const char* const x = x_.block(block.begin);
      if constexpr (kBlockwise)
        gemm_.macro_kernel(block_ + 0, whole, x, M_, panel_.rows(block.i), block.begin, block.n, sums);
      else
        gemm_.macro_kernel(block_ + 0, whole, x, M_, padded(block.n), sums);
    }
  }

  const Gemm& gemm_;
  const GemmShape& shape_;
  PackedX& x_;
  const PanelOrder& order_;
  const int64_t M_, N_, K_, begin_, count_, panel_sums_;
  int64_t group_size_ = 0, scales_a_block_ = 0;  // groups
  typename Weight::Panel panel_;
  const Scratch block_, sums_;
  Visit here_{}, then_{};
  ScalesAhead scales_{};
};

// Calls store(m, first, count, sums, row_scales) with the sums of channels [first, first + count) of row m, from several threads,
// for these panels of N channels. All rows of x are those that `gemm` accepts.
template <class Sum, class Gemm, class Weight, class ParallelFor, class Store>
void gemm_of_accepted(const Gemm& gemm, const InputRows& input, int64_t N, const Panels& panels, const Weight& weight,
                      const ParallelFor& parallel_for, const Store& store) {
  const int64_t K = input.K;
  int64_t group_size = 0;  // whose sums are needed in any case
  if constexpr (std::is_same_v<Gemm, GemmInt4Codes>) group_size = weight.group_size;
  PackedX x(gemm.shape, input);
  for (int64_t row = 0; row < input.M; row += x.MC()) {
    const int64_t M = std::min(x.MC(), input.M - row);
    x.pack(row, M, group_size, parallel_for);
    const PanelOrder order(gemm.shape, M, K, sizeof(Sum));
    parallel_for(panels.end - panels.begin, grain(kPanel, K), [&](int64_t begin, int64_t end) {
      ThreadOfGemm<Sum, Gemm, Weight> thread(gemm, x, M, order, weight, N, K, panels.begin + begin, panels.begin + end);
      thread.multiply([&](int64_t m, int64_t first, int64_t count, const Sum* sums, const float* row_scales) {
        store(row + m, first, count, sums, row_scales);
      });
    });
  }
}

struct SegmentsWeight;  // segments_weight.h

// The gemm of float32 operands for such a weight, which accepts every row.
template <class Weight>
const auto& gemm_of_floats() {
  if constexpr (Weight::kInt4)
    return *kernels().gemm_int4_f32;
  else if constexpr (std::is_same_v<Weight, SegmentsWeight>)
    return *kernels().gemm_segments_f32;
  else if constexpr (Weight::kBlockwise)
    return *kernels().gemm_blockwise_f32;
  else
    return *kernels().gemm_f32;
}

// The same of all rows of x: runs of those that `gemm` does not accept, which are rare, go by float32.
template <class Sum, class Gemm, class Weight, class ParallelFor, class Store>
void gemm_product(const Gemm& gemm, const InputRows& input, int64_t N, const Panels& panels, const Weight& weight,
                  const ParallelFor& parallel_for, const Store& store) {
  const auto accepts = [&](int64_t m) { return gemm.shape.accepts(input.element, input.row(m), input.K); };
  for (int64_t first = 0, end = 0; first < input.M; first = end) {
    const bool accepted = accepts(first);
    for (end = first + 1; end < input.M && accepts(end) == accepted;) ++end;
    const InputRows run = input.run(first, end - first);
    const auto store_run = [&](int64_t m, int64_t channel, int64_t count, const Sum* sums, const float* row_scales) {
      store(first + m, channel, count, sums, row_scales);
    };
    if (accepted)
      gemm_of_accepted<Sum>(gemm, run, N, panels, weight, parallel_for, store_run);
    else if constexpr (std::is_same_v<Sum, float>)
      gemm_of_accepted<Sum>(gemm_of_floats<Weight>(), run, N, panels, weight, parallel_for, store_run);
  }
}

}  // namespace aoext::cpu
