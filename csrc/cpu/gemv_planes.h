// Weights whose codes lie in planes, by few rows of x: of int8 by segments of one scale, others in limbs, each by itself, so that
// none changes another's result.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "cpu/gemv.h"

namespace aoext::cpu {

// Rows of x as such a kernel takes them.
class PlanesRows {
 public:
  PlanesRows(const GemvPlanes& gemv, const LinearProblem& p, const InputRows& x)
      : gemv_(gemv),
        K_(p.K),
        segment_(gemv.by_blocks ? layout(p.code).values
                                : std::gcd(gemv.longest_segment, gemv.limbs.count > 1 ? p.group_size : segment_of(p))),
        segments_(p.K / segment_),
        of_sum_(gemv.by_blocks ? p.group_size : segment_),
        row_bytes_(ceil_div(p.K, gemv.vector) * gemv.vector * gemv.limbs.count),
        numbers_(p.K / std::min(segment_, of_sum_) + kScalesBeyond),
        x_(p.M * row_bytes_),
        scales_(p.M * numbers_),
        sums_(p.M * numbers_) {
    std::memset(x_ + 0, 0, p.M * row_bytes_);
    for (int64_t m = 0; m < p.M; ++m) {
      int8_t* const to = row(count());
      if (!(gemv.limbs.count == 1 ? keep_integers(p, x, m, to) : split(p, x, m, to)))
        beyond_.push_back(m);
      else if (gemv.arrange != nullptr)
        gemv.arrange(p.code, to, p.K);
    }
  }

  int64_t count() const { return static_cast<int64_t>(within_.size()); }
  const std::vector<int64_t>& within() const { return within_; }
  const std::vector<int64_t>& beyond() const { return beyond_; }

  void multiply(PlanesWeight::Panel& panel, int64_t first, int64_t channels, float (*sums)[kPanel]) const {
    const RowsByPlanes x{row(0), scales_.data(), sums_.data(), of_rows_.data(), row_bytes_, numbers_};
    gemv_.dot(panel.as_it_lies(first, channels, segment_), channels, K_, x, count(), sums);
  }

 private:
  static int64_t block_of(const LinearProblem& p) { return p.input_group_size == 0 ? p.K : p.input_group_size; }
  int8_t* row(int64_t i) const { return reinterpret_cast<int8_t*>(x_ + i * row_bytes_); }

  // The next row: its scales, and what its sums meet. False where scales are too far apart for a factor in common.
  bool keep(int64_t m, const std::vector<float>& scales, const std::vector<float>& sums, float by) {
    constexpr float kWidest = 0x1p60f;
    float most = 0, least = std::numeric_limits<float>::max();
    for (const float scale : scales) {
      most = std::max(most, scale);
      if (scale > 0) least = std::min(least, scale);
    }
    if (!(most / kWidest <= least)) return false;
    const int exponent = most > 0 ? std::clamp(std::ilogb(most), -120, 120) : 0;
    const float inverse = std::ldexp(1.0f, -exponent);
    const int64_t at = count() * numbers_;
    for (int64_t s = 0; s < segments_; ++s) scales_[at + s] = scales[s] * inverse;
    for (size_t s = 0; s < sums.size(); ++s) sums_[at + static_cast<int64_t>(s)] = by * sums[s] * inverse;
    of_rows_.push_back(std::ldexp(1.0f, exponent));
    within_.push_back(m);
    return true;
  }

  bool keep_integers(const LinearProblem& p, const InputRows& x, int64_t m, int8_t* to) {
    const int8_t* const values = reinterpret_cast<const int8_t*>(x.row(m));
    std::memcpy(to, values, p.K);
    std::vector<float> scales(segments_), sums(p.K / of_sum_);
    const auto scale_at = [&](int64_t k) { return x.scales[m * x.scales_of_row + k / block_of(p)]; };
    for (int64_t s = 0; s < segments_; ++s) scales[s] = scale_at(s * segment_);
    kernels().group_sums(Element::int8, values, p.K, of_sum_, sums.data(), 1);
    for (int64_t s = 0; s < p.K / of_sum_; ++s) sums[s] *= scale_at(s * of_sum_);
    return keep(m, scales, sums, less_middle(p));
  }

  bool split(const LinearProblem& p, const InputRows& x, int64_t m, int8_t* to) {
    std::vector<float> values(p.K);
    values_of(x, block_of(p), m, values.data());
    std::vector<float> scales(segments_), fixed_sums(segments_), sums(segments_);
    if (!gemv_.limbs.split(values.data(), p.K, segment_, to, scales.data(), fixed_sums.data(), sums.data())) return false;
    if (of_sum_ != segment_) {
      sums.resize(p.K / of_sum_);
      kernels().group_sums(Element::fp32, values.data(), p.K, of_sum_, sums.data(), 1);
    }
    return keep(m, scales, has_zero_points_beside(p) || of_sum_ != segment_ ? sums : fixed_sums, less_middle(p));
  }

  // Sums of x meet zero points, or scales where codes have a middle, or are multiplied as bytes less their sign.
  static float less_middle(const LinearProblem& p) {
    const Layout& of = layout(p.code);
    return has_zero_points_beside(p) ? 1.0f : -static_cast<float>(of.looks_up ? 128 : of.code.middle);
  }

  const GemvPlanes& gemv_;
  const int64_t K_, segment_, segments_, of_sum_, row_bytes_, numbers_;
  const Scratch x_;
  std::vector<float> scales_, sums_, of_rows_;
  std::vector<int64_t> within_, beyond_;
};

// Whether zero points are packed with weights.
inline bool packs_zero_points(Kernel kernel) {
  bool packs = false;
  with_kernel(kernel, [&](const auto& k) {
    if constexpr (std::is_same_v<decltype(k), const GemmBlockwise&>) packs = k.add_group_terms != nullptr;
  });
  return packs;
}

// The same by any other kernel, whose zero points may go beside the product.
inline void multiply_planes(Kernel kernel, const LinearProblem& p, const Data& d, const InputRows& all, const InputRows& x,
                            const std::vector<int64_t>& order, const Panels& panels, const PlanesWeight& weight) {
  std::optional<SubtractedZeroPoints> zero_points;
  if (weight.has_zero_points && !packs_zero_points(kernel)) zero_points.emplace(p, all, weight, panels);
  const Output output(p, d, all, weight, zero_points ? &*zero_points : nullptr);
  const Product product{p, x, output, panels, order};
  with_kernel(kernel, [&](const auto& k) {
    if constexpr (requires { multiply_by(k, product, weight); }) multiply_by(k, product, weight);
  });
}

// Rows of x that limbs do not hold go as floats, by a kernel that is chosen for all rows: what limbs hold of one changes no
// other.
inline void multiply_planes_by_few(const GemvPlanes& gemv, const LinearProblem& p, const Data& d, const InputRows& x,
                                   const Panels& panels, const PlanesWeight& weight) {
  const PlanesRows rows(gemv, p, x);
  if (rows.count() > 0) {
    const Output output(p, d, x, weight);
    const InputRows within{x.data, x.element, x.element_size, rows.count(), x.K};
    each_panel({p, within, output, panels, rows.within()}, weight,
               [&](PlanesWeight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
                 rows.multiply(panel, first, count, sums);
               });
  }
  if (rows.beyond().empty()) return;
  const auto count = static_cast<int64_t>(rows.beyond().size());
  LinearProblem wide = p;
  wide.input = ScalarType::Float;
  wide.input_group_size = 0;
  std::vector<float> values(count * p.K);
  for (int64_t i = 0; i < count; ++i) values_of(x, p.input_group_size, rows.beyond()[i], &values[i * p.K]);
  const InputRows floats{values.data(), Element::fp32, sizeof(float), count, p.K};
  multiply_planes(plan_planes_floats(Choice(wide)), p, d, x, floats, rows.beyond(), panels, weight);
}

inline void linear(const LinearProblem& p, Kernel kernel, const Data& d, const Panels& panels, const PlanesWeight& weight) {
  InputRows x = input_rows(p, d.input);
  x.scales = d.input_scale;
  x.scales_of_row = d.input_scale == nullptr ? 0 : ceil_div(p.K, p.input_group_size);
  with_kernel(kernel, [&](const auto& k) {
    if constexpr (std::is_same_v<decltype(k), const GemvPlanes&>)
      multiply_planes_by_few(k, p, d, x, panels, weight);
    else
      multiply_planes(kernel, p, d, x, x, {}, panels, weight);
  });
}

}  // namespace aoext::cpu
