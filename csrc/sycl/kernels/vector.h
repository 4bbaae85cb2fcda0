// Short vectors of registers, indexable at any length from 1 on.
#pragma once

#include <cstdint>

namespace aoext::xpu {

template <class T, int R>
struct VectorOf {
  typedef T type __attribute__((ext_vector_type(R)));
};
template <class T>
struct VectorOf<T, 1> {
  typedef T type;
};
template <class T, int R>
using Vector = typename VectorOf<T, R>::type;

template <int R, class T>
inline auto get(const T& v, int r) {
  if constexpr (R == 1) {
    return v;
  } else {
    return v[r];
  }
}

template <int R, class T, class X>
inline void set(T& v, int r, X x) {
  if constexpr (R == 1) {
    v = x;
  } else {
    v[r] = x;
  }
}

}  // namespace aoext::xpu
