// int4 by few rows of x: Algorithm::gemv_int4, and gemv_limbs* for those rows that allow it, each by itself, so that none changes
// another's result.
#pragma once

#include <optional>
#include <type_traits>

#include "cpu/gemv.h"
#include "cpu/multiply_gemm.h"

namespace aoext::cpu {

// x [M, K] as floats, and some of its rows.
inline std::vector<float> rows_of_floats(const LinearProblem& p, const Tensor& input) {
  std::vector<float> rows(p.M * p.K);
  each_input_row(p, input,
                 [&](int64_t m, const void* row) { shared_kernels().to_float(element(p.input), row, &rows[m * p.K], p.K); });
  return rows;
}

inline std::vector<float> chosen_rows(const std::vector<float>& rows, int64_t K, const std::vector<int64_t>& chosen) {
  std::vector<float> out;
  for (const int64_t m : chosen) out.insert(out.end(), rows.begin() + m * K, rows.begin() + (m + 1) * K);
  return out;
}

// Rows of x, packed for Kernels::gemv_int4.
class FloatRows {
 public:
  FloatRows(const LinearProblem& p, const std::vector<float>& rows, const std::vector<int64_t>& chosen)
      : p_(p),
        gemv_(*kernels().gemv_int4),
        stride_(padded(p.K)),
        count_(static_cast<int64_t>(chosen.size())),
        x_(count_ * stride_),
        group_sums_(count_ * (p.K / p.group_size)) {
    for (int64_t i = 0; i < count_; ++i)
      gemv_.pack_x(&rows[chosen[i] * p.K], p.K, p.group_size, &x_[i * stride_], &group_sums_[i * (p.K / p.group_size)]);
  }

  void multiply(Int4Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) const {
    if (count_ == 0) return;
    panel.move(first, count, 0, p_.K);
    gemv_.dot(x_.data(), stride_, group_sums_.data(), count_, panel.int4(0), count, p_.K, sums);
  }

 private:
  const LinearProblem& p_;
  const GemvInt4& gemv_;
  int64_t stride_, count_;
  std::vector<float> x_, group_sums_;
};

// The rows of x that int8 limbs hold, for one of the three kinds of gemv by limbs.
template <class Gemv>
class LimbRows {
 public:
  LimbRows(const Gemv& gemv, const LinearProblem& p, const std::vector<float>& rows)
      : p_(p),
        gemv_(gemv),
        row_bytes_(gemv.limbs.count * padded(p.K)),
        x_(p.M * row_bytes_),
        scales_(p.M * groups()),
        fixed_sums_(p.M * groups()),
        sums_(p.M * groups()) {
    std::memset(x_ + 0, 0, p.M * row_bytes_);
    for (int64_t m = 0; m < p.M; ++m) {
      const int64_t i = count(), g = i * groups();
      const bool fits = gemv.limbs.split(&rows[m * p.K], p.K, p.group_size, row(i), &scales_[g], &fixed_sums_[g], &sums_[g]);
      (fits ? within_ : beyond_).push_back(m);
    }
    if constexpr (kPacked) {
      if (count() == 0) return;
      packed_.emplace(gemv.packed_bytes(count(), p.K, p.group_size));
      gemv.pack_x(row(0), row_bytes_, scales_.data(), count(), p.K, p.group_size, *packed_ + 0);
    }
  }

  int64_t count() const { return static_cast<int64_t>(within_.size()); }
  const std::vector<int64_t>& within() const { return within_; }
  const std::vector<int64_t>& beyond() const { return beyond_; }

  template <class Panel>
  void multiply(Panel& panel, int64_t first, int64_t channels, float (*sums)[kPanel]) const {
    if (count() == 0) return;
    const GroupsOfX of_x{scales_.data(), fixed_sums_.data(), sums_.data()};
    if constexpr (kStaged)
      panel.dot_staged(gemv_, row(0), row_bytes_, of_x, count(), first, channels, sums);
    else if constexpr (kPacked)
      gemv_.dot(*packed_ + 0, of_x, count(), panel.in_whole_vectors(first, channels), channels, p_.K, sums);
    else
      gemv_.dot(row(0), row_bytes_, of_x, count(), panel.in_whole_vectors(first, channels), channels, p_.K, sums);
  }

 private:
  static constexpr bool kStaged = std::is_same_v<Gemv, GemvLimbsStaged>, kPacked = std::is_same_v<Gemv, GemvLimbsPacked>;

  int64_t groups() const { return p_.K / p_.group_size; }
  int8_t* row(int64_t i) const { return reinterpret_cast<int8_t*>(x_ + i * row_bytes_); }

  const LinearProblem& p_;
  const Gemv& gemv_;
  int64_t row_bytes_;
  Scratch x_;
  std::vector<float> scales_, fixed_sums_, sums_;
  std::vector<int64_t> within_, beyond_;
  std::optional<Scratch> packed_;
};

// Algorithm::gemv_int4.
inline void multiply_gemv_int4(const LinearProblem& p, const Tensor& input, const Int4Weight& weight, const Output& output) {
  std::vector<int64_t> all(p.M);
  for (int64_t m = 0; m < p.M; ++m) all[m] = m;
  const FloatRows rows(p, rows_of_floats(p, input), all);
  each_panel(p, weight, output, [&](Int4Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    rows.multiply(panel, first, count, sums);
  });
}

// Algorithm::gemv_limbs*: rows beyond limbs meet the same panels as floats, or a gemm of their own.
template <class Gemv>
void multiply_gemv_limbs(const Gemv& gemv, const LinearProblem& p, const Tensor& input, const Int4Weight& weight,
                         const Output& output) {
  const std::vector<float> rows = rows_of_floats(p, input);
  const LimbRows<Gemv> limbs(gemv, p, rows);
  std::vector<int64_t> beyond = limbs.beyond();
  if (const Plan floats = plan_int4_floats(p); !beyond.empty() && floats.algorithm != Algorithm::gemv_int4) {
    const std::vector<float> x = chosen_rows(rows, p.K, beyond);
    const int64_t count = static_cast<int64_t>(beyond.size());
    multiply_gemm(floats, {x.data(), Element::fp32, sizeof(float), count, p.K}, weight, output, beyond);
    beyond.clear();
    if (limbs.count() == 0) return;
  }
  const FloatRows others(p, rows, beyond);
  std::vector<int64_t> order = limbs.within();
  order.insert(order.end(), beyond.begin(), beyond.end());
  each_panel(
      p, weight, output,
      [&](Int4Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
        limbs.multiply(panel, first, count, sums);
        others.multiply(panel, first, count, sums + limbs.count());
      },
      order);
}

// The algorithms of this file.
inline void multiply_few_int4(const LinearProblem& p, const Plan& plan, const Tensor& input, const Int4Weight& weight,
                              const Output& output) {
  const Kernels& k = kernels();
  const auto by_limbs = [&](const auto& gemv) { multiply_gemv_limbs(gemv, p, input, weight, output); };
  const bool two = plan.algorithm == Algorithm::gemv_limbs2;
  if (plan.algorithm == Algorithm::gemv_int4) return multiply_gemv_int4(p, input, weight, output);
  if (plan.algorithm == Algorithm::gemv_limbs2_packed) return by_limbs(*k.gemv_limbs2_packed);
  if (plan.algorithm == Algorithm::gemv_limb) return by_limbs(*k.gemv_limb);
  if (plan.algorithm == Algorithm::gemv_limb_staged) return by_limbs(*k.gemv_limb_staged);
  if (k.gemv_limbs2 != nullptr) return by_limbs(two ? *k.gemv_limbs2 : *k.gemv_limbs3);
  by_limbs(two ? *k.gemv_limbs2_staged : *k.gemv_limbs3_staged);
}

}  // namespace aoext::cpu
