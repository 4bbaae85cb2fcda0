// What tells a kernel's instances apart: the arguments of its template by name, as ints (element.h). Launchers find their code by
// it, and tests launch each of them.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "common/element.h"

namespace aoext::cuda {

// f(std::integral_constant{}) of each value.
template <auto... kValues, class F>
void each(F&& f) {
  (f(std::integral_constant<decltype(kValues), kValues>()), ...);
}

// "int4_mma type=0 scale=2 block_m=64"
template <size_t n>
std::string instance_text(const char* kernel, const std::array<const char*, n>& names, const std::array<int, n>& key) {
  std::string all = kernel;
  for (size_t i = 0; i < n; ++i) all += std::string(" ") + names[i] + "=" + std::to_string(key[i]);
  return all;
}

// A line for each that `for_each` names first.
template <size_t n, class ForEach>
std::string instances_text(const char* kernel, const std::array<const char*, n>& names, ForEach&& for_each) {
  std::string all;
  for_each([&](const std::array<int, n>& key, const auto&...) { all += instance_text(kernel, names, key) + "\n"; });
  return all;
}

}  // namespace aoext::cuda
