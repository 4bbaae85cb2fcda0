// int4 by few rows of x: as floats, or as int8 limbs for those rows that allow it, each by itself, so that none changes another's
// result.
#pragma once

#include <optional>
#include <type_traits>

#include "cpu/gemv.h"

namespace aoext::cpu {

// x [M, K] as floats, and some of its rows.
inline std::vector<float> rows_of_floats(const InputRows& x) {
  std::vector<float> rows(x.M * x.K);
  for (int64_t m = 0; m < x.M; ++m) kernels().to_float(x.element, x.row(m), &rows[m * x.K], x.K);
  return rows;
}

inline std::vector<float> chosen_rows(const std::vector<float>& rows, int64_t K, const std::vector<int64_t>& chosen) {
  std::vector<float> out;
  for (const int64_t m : chosen) out.insert(out.end(), rows.begin() + m * K, rows.begin() + (m + 1) * K);
  return out;
}

// The same of a product, for kernels that take floats.
inline Product product_of_floats(const Product& product, const std::vector<float>& rows, const std::vector<int64_t>& order) {
  const int64_t M = static_cast<int64_t>(order.size());
  return {product.p, {rows.data(), Element::fp32, sizeof(float), M, product.x.K}, product.output, product.panels, order};
}

// Rows of x, packed for GemvInt4, which takes so many at once.
class FloatRows {
 public:
  FloatRows(const GemvInt4& gemv, const LinearProblem& p, const std::vector<float>& rows, const std::vector<int64_t>& chosen,
            int64_t at_once)
      : p_(p),
        gemv_(gemv),
        at_once_(at_once),
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
    for (int64_t m = 0; m < count_; m += at_once_)
      gemv_.dot(&x_[m * stride_], stride_, &group_sums_[m * (p_.K / p_.group_size)], at_once_, panel.int4(0), count, p_.K,
                sums + m);
  }

 private:
  const LinearProblem& p_;
  const GemvInt4& gemv_;
  int64_t at_once_, stride_, count_;
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

inline void multiply_by(const GemvInt4& gemv, const Product& product, const Int4Weight& weight) {
  std::vector<int64_t> all(product.M());
  for (int64_t m = 0; m < product.M(); ++m) all[m] = m;
  const FloatRows rows(gemv, product.p, rows_of_floats(product.x), all, product.at_once());
  each_panel(product, weight, [&](Int4Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
    rows.multiply(panel, first, count, sums);
  });
}

// Rows beyond limbs meet the same panels as floats, or a gemm of their own.
template <class Gemv>
void multiply_by_limbs(const Gemv& gemv, const Product& product, const Int4Weight& weight) {
  const LinearProblem& p = product.p;
  const std::vector<float> rows = rows_of_floats(product.x);
  const LimbRows<Gemv> limbs(gemv, p, rows);
  std::vector<int64_t> beyond = limbs.beyond();
  if (const Kernel floats = plan_int4_floats(Choice(p)); !beyond.empty() && floats != Kernel::gemv_int4) {
    const std::vector<float> x = chosen_rows(rows, p.K, beyond);
    with_kernel(floats, [&](const auto& gemm) {
      if constexpr (requires {
                      gemm.macro_kernel;
                      multiply_by(gemm, product, weight);
                    })
        multiply_by(gemm, product_of_floats(product, x, beyond), weight);
    });
    beyond.clear();
    if (limbs.count() == 0) return;
  }
  const FloatRows others(*kernels().gemv_int4, p, rows, beyond, /*at_once=*/1);
  std::vector<int64_t> order = limbs.within();
  order.insert(order.end(), beyond.begin(), beyond.end());
  each_panel(product_of_floats(product, rows, order), weight,
             [&](Int4Weight::Panel& panel, int64_t first, int64_t count, float (*sums)[kPanel]) {
               limbs.multiply(panel, first, count, sums);
               others.multiply(panel, first, count, sums + limbs.count());
             });
}

inline void multiply_by(const GemvLimbs& gemv, const Product& product, const Int4Weight& weight) {
  multiply_by_limbs(gemv, product, weight);
}
inline void multiply_by(const GemvLimbsPacked& gemv, const Product& product, const Int4Weight& weight) {
  multiply_by_limbs(gemv, product, weight);
}
inline void multiply_by(const GemvLimbsStaged& gemv, const Product& product, const Int4Weight& weight) {
  multiply_by_limbs(gemv, product, weight);
}

}  // namespace aoext::cpu
