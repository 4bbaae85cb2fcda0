// What aoext.explain tells: the kernel that a device chose for a call, and its choices by name.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aoext {

struct Explanation {
  std::string device, kernel;
  std::vector<std::pair<std::string, std::string>> choices = {};

  Explanation& with(const char* name, std::string value) {
    choices.emplace_back(name, std::move(value));
    return *this;
  }
  Explanation& with(const char* name, int64_t value) { return with(name, std::to_string(value)); }
};

// The explanation of a call that the generic kernels serve.
inline Explanation generic_explanation() { return {"generic", "ATen operators"}; }

}  // namespace aoext
